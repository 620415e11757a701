"""`ModalityHandler`, what turns model outputs into one modality's value, and the built-in ones."""

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AccumulationError
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.outputs import Concat, OmniOutput
from omniwire.contracts.tokens import TokenIds
from omniwire.runtime.accumulate import Accumulator, Value, make_accumulator

GENERIC_KEYS = ("model_outputs", "hidden")
"""Keys that belong to whatever the single non-text modality of the output type is."""


class ModalityHandler(Protocol):
    """Extracts and accumulates one output modality; one object serves all requests of an engine.

    A handler keeps no state of its own: what belongs to a request is in the accumulated value.
    It may raise anything; that fails its modality of that request and nothing else.
    """

    @property
    def modality(self) -> str:
        """The modality's name, `[a-z][a-z0-9_]{0,63}`."""
        ...

    def extract(self, output: OmniOutput) -> object | None:
        """This modality's part of a model output.

        Args:
            output: One step's output. Keys that the request's `OutputSpec` declares have been
                taken out of `multimodal_outputs` already.

        Returns:
            A tensor, a tuple of tensors (chunks in order), a mapping with one of those and its
            scalars and strings, or None when the output has nothing of this modality.
        """
        ...

    def accumulate(self, existing: Any, incoming: Any) -> Any:
        """Add one chunk to what there is.

        Args:
            existing: What the last call returned; None for the first chunk. For one that replaces
                everything before it, None, or an empty `Accumulator` if the last call returned
                an `Accumulator`.
            incoming: A tensor, handed over: nobody else writes to it.

        Returns:
            The new accumulated value, in any form that `consolidate` understands. Against the
            request's `max_retained_bytes` count tensors in it, also in lists, tuples and
            mappings, and objects that say their size as `nbytes`. Once there are many chunks,
            it is counted after every eighth more of them.
        """
        ...

    def consolidate(self, accumulated: Any) -> Value:
        """The accumulated value as a tensor or a tuple of tensors.

        It is called at the end, and before that whenever the request's `OutputKind` wants
        output. It changes nothing, and what it returned is not changed by later chunks.
        """
        ...

    def validate(self, value: Any) -> bool:
        """Whether a consolidated value may be sent to the client; False fails the modality."""
        ...


class TensorHandler:
    """Base of the built-in handlers: chunks under one of `keys`, concatenated along `dim`.

    The payload is flat (`{"audio": t, "sample_rate": 24000}`) or nested under one of the keys
    (`{"audio": {"waveform": t, "sample_rate": 24000}}`). No rank is prescribed: the first
    chunk fixes it. A custom modality is a subclass that sets the three attributes:

    >>> class DepthHandler(TensorHandler):
    ...     modality = "depth"
    ...     keys = ("depth", "depth_map")
    ...     dim = 0
    >>> handler = DepthHandler()
    >>> found = handler.extract(OmniOutput(multimodal_outputs={"depth_map": torch.ones(2, 4)}))
    >>> accumulated = handler.accumulate(None, found)
    >>> accumulated = handler.accumulate(accumulated, torch.ones(1, 4))
    >>> handler.consolidate(accumulated).shape
    torch.Size([3, 4])
    """

    modality: str
    """The modality's name."""

    keys: tuple[str, ...]
    """The payload keys it extracts; at most one of them may be in a payload."""

    dim: int
    """The axis that chunks are concatenated along; negative counts from the end."""

    def extract(self, output: OmniOutput) -> object | None:
        """What the output has under one of `keys`, as it is; None when it has nothing.

        Raises:
            AccumulationError: Two of the keys are present, or the value nested under one of
                them holds a tensor that is not under one of `keys` itself.
        """
        payload = output.multimodal_outputs
        present = [key for key in payload if key in self.keys]
        if not present:
            return None
        key = present[0]
        if len(present) > 1:
            self._refuse(key, f"one key for {self.modality}", " and ".join(present))
        found: object = payload[key]
        if type(found) is FrozenMapping:
            self._check_nested(key, found)
        return found

    def _check_nested(self, key: str, payload: Mapping[str, object]) -> None:
        for name, value in payload.items():
            if name in self.keys or name in GENERIC_KEYS or not holds_tensor(value):
                continue
            expected = f"a tensor under one of the keys {', '.join(self.keys)}"
            self._refuse(f"{key}.{name}", expected, describe(value))

    def _refuse(self, key: str, expected: str, got: str) -> NoReturn:
        raise AccumulationError(f"expected {expected}, got {got}", "", self.modality, key)

    def accumulate(self, existing: Accumulator | None, incoming: Value) -> Accumulator:
        """Add a chunk, or a tuple of chunks, all of them or none.

        Args:
            existing: What the last call returned, None for the first chunk; changed in place.
            incoming: Of shape (..., any size along `dim`, ...); handed over, not copied.

        Raises:
            AccumulationError: A chunk differs from the first one in dtype, device, rank or in
                a size along another axis.
        """
        accumulated = make_accumulator(Concat(self.dim)) if existing is None else existing
        accumulated.add(incoming)
        return accumulated

    def consolidate(self, accumulated: Accumulator) -> Value:
        """All chunks as one tensor, read-only; never changed by chunks that are added later."""
        return accumulated.value()

    def validate(self, value: object) -> bool:
        """Whether the value is a tensor or a tuple of tensors."""
        return isinstance(value, torch.Tensor) or (
            isinstance(value, tuple) and all(isinstance(part, torch.Tensor) for part in value)
        )


def inherits(handler: ModalityHandler | None, method: str) -> bool:
    """Whether a handler's method is the one of `TensorHandler`, not one of its own."""
    bound = getattr(handler, method, None)
    return getattr(bound, "__func__", None) is getattr(TensorHandler, method)


class ImageHandler(TensorHandler):
    """Images, concatenated along dim 0: (1, 3, 8, 8) twice is (2, 3, 8, 8)."""

    modality = "image"
    keys = ("image", "images", "pixel_values", "pixels")
    dim = 0


class VideoHandler(TensorHandler):
    """Video frames, concatenated along dim 0."""

    modality = "video"
    keys = ("video", "videos", "frames", "video_frames")
    dim = 0


class AudioHandler(TensorHandler):
    """Audio samples, concatenated along the last dim: (1, 500) and (1, 300) is (1, 800)."""

    modality = "audio"
    keys = ("audio", "audios", "wav", "waveform", "audio_pcm", "pcm")
    dim = -1


class LatentHandler(TensorHandler):
    """Latents, concatenated along dim 0."""

    modality = "latent"
    keys = ("latent", "latents", "z", "posterior")
    dim = 0


class TokenIdsHandler(TensorHandler):
    """Tensors of discrete token ids, such as image codes, concatenated along the last dim.

    They are a model output like any other; the text tokens of a step are `new_token_ids`.
    """

    modality = "token_ids"
    keys = ("token_ids",)
    dim = -1


class TextHandler:
    """Text, which exists only as the `new_token_ids` of a chunk: there is nothing to extract."""

    modality: str = "text"

    def extract(self, output: OmniOutput) -> None:
        """None: a model output holds no text."""

    def accumulate(self, existing: object, incoming: object) -> NoReturn:
        """Refuse the tensor.

        Raises:
            AccumulationError: Always.
        """
        message = f"expected text as new_token_ids, got {describe(incoming)}"
        raise AccumulationError(message, "", self.modality)

    def consolidate(self, accumulated: object) -> NoReturn:
        """Refuse the value, as `accumulate` does.

        Raises:
            AccumulationError: Always.
        """
        self.accumulate(None, accumulated)

    def validate(self, value: object) -> bool:
        """Whether the value is `TokenIds`."""
        return isinstance(value, TokenIds)


def holds_tensor(value: object) -> bool:
    """Whether a payload value is or contains a tensor of at least one dimension.

    A tensor without dimensions is a scalar, such as a `sample_rate`.
    """
    if isinstance(value, torch.Tensor):
        return value.ndim > 0
    if isinstance(value, TensorHandle):
        return len(value.shape) > 0
    if isinstance(value, Mapping):
        return any(map(holds_tensor, value.values()))
    return isinstance(value, tuple)
