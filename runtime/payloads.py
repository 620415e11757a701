"""Reading a model output: which part of its payload belongs to which modality or declared key.

No part of a payload is dropped: it is extracted by a handler, named by the `OutputSpec`, a
scalar of the request's single non-text modality, or an error.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AccumulationError
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.handles import TensorHandle, resolved
from omniwire.contracts.outputs import OmniOutput
from omniwire.runtime.accumulate import Value
from omniwire.runtime.handlers import (
    GENERIC_KEYS,
    ModalityHandler,
    TensorHandler,
    holds_tensor,
    inherits,
)

Scalar = int | float | bool | str
_SCALARS = frozenset((int, float, bool, str))
_TENSORS = frozenset((torch.Tensor, TensorHandle))

Part = tuple[str, str, object]
"""A modality or declared key, the payload key of its part, and that part."""

Failure = tuple[str, str, Exception]
"""A modality, the payload key that was looked at, and what its handler raised."""

Keys = tuple[str, ...]
Routed = Sequence[tuple[str, ModalityHandler, Keys | None]]
"""The non-text modalities of an output type: name, handler, and the keys that it extracts.

The keys are None if the handler has an `extract` of its own, which shows only when it is called.
"""


def extracted_keys(handler: ModalityHandler) -> Keys | None:
    """The keys that a handler extracts, if that is known beforehand."""
    known = isinstance(handler, TensorHandler) and inherits(handler, "extract")
    return handler.keys if known else None  # type: ignore[attr-defined]  # known to have them


def plain_keys(routed: Routed) -> dict[str, str]:
    """By payload key, the modality of the only handler that could extract it.

    It is empty when a handler has an `extract` of its own, which may look at any key.
    """
    if any(known is None for _, _, known in routed):
        return {}
    claimed = [(key, modality) for modality, _, known in routed for key in known or ()]
    counted = Counter(key for key, _ in claimed)
    return {key: modality for key, modality in claimed if counted[key] == 1}


def read_plain(
    payload: Mapping[str, object], plain: Mapping[str, str], single: str
) -> list[Part] | None:
    """The parts of the usual payload, as `read_output` gives them; None of any other.

    The usual one is a tensor, and perhaps flat scalars next to it.

    Args:
        payload: All of it.
        plain: What `plain_keys` gives; empty if the `OutputSpec` declares keys.
        single: The only modality in `plain`, which flat scalars belong to; `""` if there are
            several or none.
    """
    parts: list[Part] = []
    scalars: dict[str, object] = {}
    for key, value in payload.items():
        if type(value) is torch.Tensor and key in plain and not parts:
            parts.append((plain[key], key, value))
        elif single and type(value) in _SCALARS and key not in plain and key not in GENERIC_KEYS:
            scalars[key] = value
        else:
            return None
    if scalars:
        parts.insert(0, (single, "", scalars))
    return parts


def read_output(
    output: OmniOutput, routed: Routed, declared: AbstractSet[str]
) -> tuple[list[Part], list[Failure]]:
    """Sort the payload of a model output by where it belongs.

    Args:
        output: The model output; only its `multimodal_outputs` are for the client.
        routed: Non-text modalities of the output type and their handlers.
        declared: Dotted keys of the `OutputSpec` that are no modality of the request.

    Returns:
        The parts of the payload, and what handlers raised. Flat scalars are one part, a
        mapping under the key `""`.

    Raises:
        AccumulationError: A part of the payload could belong to several modalities, or
            belongs to none.
    """
    parts: list[Part] = []
    failures: list[Failure] = []
    payload: Mapping[str, object] = output.multimodal_outputs
    if declared:
        taken: dict[str, object] = {}
        left = _take_declared(payload, declared, "", taken)
        parts += [(name, name, value) for name, value in taken.items()]
        if left is not payload:
            payload, output = left, _with_payload(output, left)
    num_declared = len(parts)
    claimed: set[str] = set()
    for modality, handler, known in routed:
        keys: Sequence[str] = ()
        try:
            if known is None:
                watched = _Watched(payload)
                keys = watched.reads
                found = handler.extract(_with_payload(output, watched))
                keys = _taken(found, keys, payload)
            else:
                keys = [key for key in payload if key in known]
                found = handler.extract(output) if keys else None
        except Exception as error:  # noqa: BLE001  # any fault of a handler fails its modality only
            key = keys[0] if keys and not isinstance(error, AccumulationError) else ""
            failures.append((modality, key, error))
            found = None
        claimed.update(keys)
        if found is not None:
            parts.append((modality, keys[0] if len(keys) == 1 else modality, found))
    if len(claimed) < len(payload):
        rest = {key: value for key, value in payload.items() if key not in claimed}
        extracted = [key for _, key, _ in parts[num_declared:]]
        _read_rest(rest, extracted, [name for name, _, _ in routed], parts, failures)
    return parts, failures


class _Watched(Mapping[str, Any]):
    """A payload that notes which of its keys are read: what a handler read, it may have taken."""

    __slots__ = ("_values", "reads")

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.reads: list[str] = []

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self.reads.append(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._values else default

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _with_payload(output: OmniOutput, payload: Mapping[str, object]) -> OmniOutput:
    return OmniOutput._trusted(
        text_hidden_states=output.text_hidden_states,
        multimodal_outputs=payload,
        inter_stage_outputs=output.inter_stage_outputs,
    )


def _taken(found: object, reads: Sequence[str], payload: Mapping[str, object]) -> Sequence[str]:
    """The keys whose values a handler took, out of those that it read.

    It took what it returned. If it returned a tensor that is not in the payload, it made that
    from something it read, and all of it counts as taken.
    """
    if found is None:
        return ()
    if len(reads) <= 1:
        return reads
    returned = set(map(id, _tensors(found)))
    taken = []
    for key in dict.fromkeys(reads):
        held = set(map(id, _tensors(payload[key])))
        if held & returned:
            taken.append(key)
            returned -= held
    return list(dict.fromkeys(reads)) if returned else taken


def _tensors(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, torch.Tensor | TensorHandle):
        yield value


def _take_declared(
    payload: Mapping[str, object], declared: AbstractSet[str], prefix: str, taken: dict[str, object]
) -> Mapping[str, object]:
    """Move the declared keys of a payload into `taken`; what is left of it."""
    rest: dict[str, object] = {}
    for key, value in payload.items():
        name = prefix + key
        if isinstance(value, Mapping):
            left = _take_declared(value, declared, f"{name}.", taken)
            if left or not value:
                rest[key] = left
        elif name not in declared:
            rest[key] = value
        elif name in taken:
            raise _refusal("a declared key once", "it both flat and nested", key=name)
        else:
            taken[name] = value
    if len(rest) == len(payload) and all(rest[key] is value for key, value in payload.items()):
        return payload
    return FrozenMapping._wrap(rest)


def _read_rest(
    rest: Mapping[str, object],
    extracted: Sequence[str],
    modalities: Sequence[str],
    parts: list[Part],
    failures: list[Failure],
) -> None:
    """Sort what no handler extracted: generic keys and flat scalars.

    Args:
        rest: By key, what is left of the payload.
        extracted: The keys that were extracted.
        modalities: The non-text modalities of the output type.
        parts: Receives what is found; flat scalars come first, so that a wrong one keeps out
            the chunk that it describes.
        failures: What handlers raised; receives what is ambiguous within one modality.
    """
    generic = [key for key in GENERIC_KEYS if key in rest] if modalities else []
    if len(modalities) > 1 and generic:
        expected = f"a key of one modality ({', '.join(modalities)})"
        raise _refusal(expected, "one that fits each of them: ambiguous", key=generic[0])
    if generic and not failures:
        (modality,) = modalities
        keys = [*extracted, *generic]
        if len(keys) == 1:
            parts.append((modality, generic[0], rest[generic[0]]))
        else:
            message = f"expected one key for {modality}, got {' and '.join(keys)}: ambiguous"
            failures.append((modality, keys[0], AccumulationError(message, "", modality)))
    scalars: dict[str, Scalar] = {}
    for name, value in _leaves(rest, generic):
        if type(value) not in _SCALARS and holds_tensor(value):
            if failures:
                continue  # it may be what the failed handler would have extracted
            known = ", ".join(modalities) or "text alone"
            expected = f"a key of the output type ({known}) or of the OutputSpec"
            raise _refusal(expected, describe(value), key=name)
        if len(modalities) != 1:
            expected = f"a scalar nested under its modality ({', '.join(modalities) or 'none'})"
            raise _refusal(expected, "a flat one", key=name)
        scalars[name] = scalar_of(value, name)
    if scalars:
        parts.insert(0, (modalities[0], "", scalars))


def _leaves(
    payload: Mapping[str, object], skip: Sequence[str] = (), prefix: str = ""
) -> Iterator[tuple[str, object]]:
    """Dotted keys and values of a payload, mappings resolved."""
    for key, value in payload.items():
        if key in skip:
            continue
        if type(value) in _SCALARS or not isinstance(value, Mapping):
            yield prefix + key, value
        else:
            yield from _leaves(value, (), f"{prefix}{key}.")


def split_payload(payload: object) -> tuple[str, Value | None, dict[str, Scalar]]:
    """Split what a handler extracted into its chunk and its scalars.

    Args:
        payload: A tensor, a tuple or list of tensors, or a mapping of one of those and of
            scalars and strings; handles are resolved.

    Returns:
        The chunk's dotted key inside a mapping (`""` outside of one), the chunk if there is
        one, and the scalars by dotted key.

    Raises:
        AccumulationError: There are two chunks, or something that is neither.
    """
    if type(payload) is torch.Tensor:
        return "", payload, {}
    if not isinstance(payload, Mapping):
        return "", as_chunk(payload, ""), {}
    chunk: Value | None = None
    key = ""
    scalars: dict[str, Scalar] = {}
    for name, value in _leaves(payload):
        if type(value) in _SCALARS or not (holds_tensor(value) or isinstance(value, list)):
            scalars[name] = scalar_of(value, name)
        elif chunk is None:
            key, chunk = name, as_chunk(value, name)
        else:
            raise _refusal(
                "one tensor or one tuple of tensors", f"{key} and {name}: ambiguous", key=name
            )
    return key, chunk, scalars


def as_chunk(value: object, key: str) -> Value:
    """A tensor or a tuple of tensors, handles resolved.

    Raises:
        AccumulationError: The value is something else.
    """
    if type(value) in _TENSORS:
        return resolved(value)  # type: ignore[arg-type]  # one of the two
    if isinstance(value, tuple | list):
        for index, part in enumerate(value):
            if type(part) not in _TENSORS:
                raise _refusal("a plain tensor", describe(part), key=f"{key}[{index}]")
        return tuple(map(resolved, value))
    expected = "a plain tensor, a tuple of those or a mapping with one of them"
    raise _refusal(expected, describe(value), key=key)


def scalar_of(value: object, key: str) -> Scalar:
    """A scalar or string; a tensor without dimensions gives its number.

    Reading the number of one on a device waits for the device: a model that must not wait
    sends numbers.

    Raises:
        AccumulationError: The value is something else.
    """
    if type(value) not in _SCALARS and isinstance(value, torch.Tensor | TensorHandle):
        value = resolved(value).item() if len(value.shape) == 0 else value
    if isinstance(value, int | float | str):
        return value
    raise _refusal("a scalar or a string", describe(value), key=key)


def _refusal(expected: str, got: str, *, key: str) -> AccumulationError:
    return AccumulationError(f"expected {expected}, got {got}", "", "", key)
