"""`MultimodalParams`: everything multimodal about one request, or one view of it."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import check_instance, each, raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.frozen import FrozenMapping, as_payload, empty_mapping, take_frozen
from omniwire.contracts.guard import guarded
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.items import ItemRef, MultimodalItemMetadata
from omniwire.contracts.runtime_data import MultimodalRuntimeData

ITEM_METADATA_KEY: Final = "item_metadata"
EMBEDDING_KEY: Final = "multimodal_embedding"
MROPE_KEY: Final = "mrope_config"
MROPE_DELTAS_KEY: Final = "mrope_position_deltas"
RESERVED_KEYS: Final = frozenset({ITEM_METADATA_KEY, EMBEDDING_KEY, MROPE_KEY})
"""Top-level keys of `multimodal_data` that are no modality."""

AttachedEmbeddings = torch.Tensor | TensorHandle | tuple[torch.Tensor | TensorHandle, ...]
Embeddings = torch.Tensor | TensorHandle | Sequence[torch.Tensor | TensorHandle]

_SUBJECT: Final = "MultimodalParams"


@attrs.frozen(eq=False, repr=False)
class MultimodalParams(Contract):
    """The multimodal part of a request, or of one execution view of it. Unhashable.

    Attributes:
        multimodal_input: Hashes, positions and runs of the items, or None.
        multimodal_data: The payload tree by modality, `{"image": {"pixel_values": tensor}}`,
            with auxiliary keys beside. Reserved keys: `"item_metadata"`, the single
            `MultimodalItemMetadata`; `"multimodal_embedding"`, attached embeddings (one
            tensor or handle, or a tuple of one per item). Tensors are held, not copied, and
            are read-only by contract.
        multimodal_runtime: The chunk that a view serves; a request's own params have none.
        encoder_state: Live executor state; never crosses a process, never part of `==`. Views
            have none.

    Raises:
        ContractTypeError: A field, or a part of the payload, has the wrong type.
        ContractValueError: A payload value cannot be carried, or `multimodal_runtime` and
            `encoder_state` are given together.

    >>> params = MultimodalParams(multimodal_data={"image": {"sizes": [[480, 640]]}})
    >>> params.multimodal_data["image"]["sizes"], params.has_content
    (((480, 640),), True)
    """

    multimodal_input: MultimodalInput | None = None
    multimodal_data: FrozenMapping[Any] = attrs.field(factory=empty_mapping, converter=as_payload)
    multimodal_runtime: MultimodalRuntimeData | None = None
    encoder_state: object | None = None

    _INCOMPARABLE = frozenset({"encoder_state"})
    __hash__ = None  # type: ignore[assignment]  # holds tensors

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        if self.multimodal_input is not None:
            check_instance(
                problems,
                ("multimodal_input",),
                self.multimodal_input,
                MultimodalInput,
                "a MultimodalInput",
            )
        if take_frozen(self.multimodal_data, ("multimodal_data",), problems):
            _check_reserved(self.multimodal_data, problems)
        if self.multimodal_runtime is not None:
            check_instance(
                problems,
                ("multimodal_runtime",),
                self.multimodal_runtime,
                MultimodalRuntimeData,
                "a MultimodalRuntimeData",
            )
            if self.encoder_state is not None:
                expected = "no encoder state beside multimodal_runtime"
                got = describe(self.encoder_state)
                problems.append(Problem(("encoder_state",), "conflict", expected, got))
        raise_problems(_SUBJECT, problems)

    @property
    def item_metadata(self) -> MultimodalItemMetadata | None:
        """The single record under the reserved key, or None."""
        record: MultimodalItemMetadata | None = self.multimodal_data.get(ITEM_METADATA_KEY)
        return record

    @property
    def embeddings(self) -> AttachedEmbeddings | None:
        """The attached embeddings under the reserved key, or None."""
        attached: AttachedEmbeddings | None = self.multimodal_data.get(EMBEDDING_KEY)
        return attached

    @property
    def has_content(self) -> bool:
        """Whether there is any payload or any input record."""
        return self.multimodal_input is not None or bool(self.multimodal_data)

    @classmethod
    @guarded
    def from_embeddings(
        cls,
        embeddings: Embeddings,
        item_metadata: MultimodalItemMetadata | None = None,
        multimodal_input: MultimodalInput | None = None,
    ) -> "MultimodalParams":
        """Params that carry ready embeddings instead of encoder inputs.

        Args:
            embeddings: Of shape (rows, hidden): one tensor or handle for the request in
                prompt order, or a sequence of one per item. Held, not copied.
            item_metadata: The items' record, if known.
            multimodal_input: The items' hashes and positions, if known.

        Raises:
            ContractTypeError: An argument or an element has the wrong type.
            ContractValueError: The sequence is empty, or an element cannot be carried.
        """
        data: dict[str, object] = {EMBEDDING_KEY: embeddings}
        if item_metadata is not None:
            data[ITEM_METADATA_KEY] = item_metadata
        return cls(multimodal_input, data)

    def with_embeddings(self, embeddings: Embeddings) -> "MultimodalParams":
        """A trusted view with other embeddings attached; runs no validator.

        Args:
            embeddings: As for `from_embeddings`. Held, not copied.
        """
        if type(embeddings) is list:
            embeddings = tuple(embeddings)
        data = {**self.multimodal_data, EMBEDDING_KEY: embeddings}
        return self._view(FrozenMapping._wrap(data), self.multimodal_runtime)

    def with_runtime(self, runtime_data: MultimodalRuntimeData) -> "MultimodalParams":
        """A trusted view for one forward or prefill chunk; runs no validator."""
        return self._view(self.multimodal_data, runtime_data)

    def with_encoder_state(self, state: object) -> "MultimodalParams":
        """New request-owned params that hold live executor state; validated, no view.

        Raises:
            ContractValueError: These params are a view for a chunk.
        """
        return attrs.evolve(self, encoder_state=state)

    def _view(
        self, data: FrozenMapping[Any], runtime: MultimodalRuntimeData | None
    ) -> "MultimodalParams":
        return MultimodalParams._trusted(
            multimodal_input=self.multimodal_input,
            multimodal_data=data,
            multimodal_runtime=runtime,
            encoder_state=None,
        )

    @guarded
    def to_device(
        self, device: str | torch.device, paths: Sequence[str] | None = None
    ) -> "MultimodalParams":
        """New params with tensors moved; a tensor that stands twice moves once.

        Copies to an accelerator are asynchronous when the source is pinned. Handles, arrays
        and everything else stay as they are.

        Args:
            device: Where to.
            paths: Dotted paths into `multimodal_data`, such as `"image.pixel_values"`, each to
                a tensor or to a mapping or tuple of them; None for every tensor.

        Raises:
            ContractTypeError: An argument has the wrong type.
            ContractValueError: There is no such device, or a path leads nowhere.
        """
        try:
            mover = _Mover(torch.device(device))
        except RuntimeError:
            problem = Problem(("device",), "device", "a device that torch knows", describe(device))
            raise contract_error(_SUBJECT, [problem]) from None
        if paths is None:
            data = mover.move(self.multimodal_data)
        else:
            data = self.multimodal_data
            problems: list[Problem] = []
            for index, path in enumerate(paths):
                if not check_instance(problems, ("paths", index), path, str, "a dotted path"):
                    continue
                moved = _replace_at(data, path.split("."), mover)
                if moved is None:
                    expected = "a dotted path into multimodal_data"
                    problem = Problem(("paths", index), "unknown", expected, describe(path))
                    problems.append(problem)
                else:
                    data = moved
            raise_problems(_SUBJECT, problems)
        return MultimodalParams._trusted(
            multimodal_input=self.multimodal_input,
            multimodal_data=data,
            multimodal_runtime=self.multimodal_runtime,
            encoder_state=self.encoder_state,
        )

    def strip_for_generation(self) -> "MultimodalParams":
        """New params with only what decoding still needs: `mrope_config.mrope_position_deltas`.

        Everything else is dropped, the encoder state too: release that first.
        """
        mrope = self.multimodal_data.get(MROPE_KEY)
        data: dict[str, object] = {}
        if isinstance(mrope, FrozenMapping) and MROPE_DELTAS_KEY in mrope:
            data[MROPE_KEY] = FrozenMapping._wrap({MROPE_DELTAS_KEY: mrope[MROPE_DELTAS_KEY]})
        return MultimodalParams._trusted(
            multimodal_input=None,
            multimodal_data=FrozenMapping._wrap(data),
            multimodal_runtime=None,
            encoder_state=None,
        )


def _check_reserved(data: FrozenMapping[Any], problems: list[Problem]) -> None:
    record = data.get(ITEM_METADATA_KEY)
    path: Path = ("multimodal_data", ITEM_METADATA_KEY)
    if ITEM_METADATA_KEY in data:
        expected = "a MultimodalItemMetadata"
        if check_instance(problems, path, record, MultimodalItemMetadata, expected):
            assert isinstance(record, MultimodalItemMetadata)
            _check_modalities(record.item_refs, (*path, "item_refs"), problems)
    if EMBEDDING_KEY not in data:
        return
    path = ("multimodal_data", EMBEDDING_KEY)
    embeddings = data[EMBEDDING_KEY]
    kinds = (torch.Tensor, TensorHandle)
    if type(embeddings) is not tuple:
        check_instance(problems, path, embeddings, kinds, "a tensor, a handle or one per item")
        return
    if not embeddings:
        problems.append(Problem(path, "count", "embeddings of at least one item", "none"))
    for index, one in enumerate(embeddings):
        check_instance(problems, (*path, index), one, kinds, "a tensor or handle")


def _check_modalities(refs: tuple[ItemRef, ...], path: Path, problems: list[Problem]) -> None:
    if RESERVED_KEYS.isdisjoint([modality for modality, _ in refs]):
        return
    expected = f"a modality other than the reserved {', '.join(sorted(RESERVED_KEYS))}"
    for position, ref in each(refs, problems):
        if ref.modality in RESERVED_KEYS:
            where = (*path, position, "modality")
            problems.append(Problem(where, "conflict", expected, describe(ref.modality)))


class _Mover:
    """Moves the tensors of a payload tree, each distinct one once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.moved: dict[int, torch.Tensor] = {}

    def move(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.moved:
                self.moved[id(value)] = value.to(
                    self.device, non_blocking=self.device.type not in ("cpu", "meta")
                )
            return self.moved[id(value)]
        if type(value) is tuple:
            return tuple(map(self.move, value))
        if type(value) is FrozenMapping:
            return FrozenMapping._wrap({k: self.move(v) for k, v in value.items()}, value._depth)
        return value


def _replace_at(value: Any, parts: list[str], mover: _Mover) -> Any:
    """The tree with what stands at `parts` moved; None if nothing stands there."""
    if not parts:
        return None if value is None else mover.move(value)
    if type(value) is not FrozenMapping or parts[0] not in value:
        return None
    inner = _replace_at(value[parts[0]], parts[1:], mover)
    if inner is None:
        return None
    return FrozenMapping._wrap({**value, parts[0]: inner}, value._depth)
