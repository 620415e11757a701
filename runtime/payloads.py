"""Reading a model output: which part of its payload belongs to which modality or declared key.

No part of a payload is dropped: it is extracted by a handler, named by the `OutputSpec`, a
scalar of the request's single non-text modality, or an error.
"""

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
Routed = Sequence[tuple[str, ModalityHandler]]
"""The non-text modalities of an output type, each with its handler."""


class Reading:
    """What one model output holds, by where it belongs."""

    __slots__ = ("declared", "failures", "values")

    def __init__(self) -> None:
        self.values: list[tuple[str, str, object]] = []
        """Modality, payload key, payload: a chunk, or a mapping of one and its scalars.

        The flat scalars of a payload are a mapping of their own, under the key `""`.
        """
        self.declared: dict[str, object] = {}
        """By dotted key: what the `OutputSpec` names."""
        self.failures: list[tuple[str, str, Exception]] = []
        """Modality, payload key, and what its handler's `extract` raised."""


def read_output(output: OmniOutput, routed: Routed, declared: AbstractSet[str]) -> Reading:
    """Sort the payload of a model output.

    Args:
        output: The model output; only its `multimodal_outputs` are for the client.
        routed: Non-text modalities of the output type and their handlers.
        declared: Dotted keys of the `OutputSpec` that are no modality of the request.

    Raises:
        AccumulationError: A part of the payload could belong to several modalities, or
            belongs to none.
    """
    reading = Reading()
    payload: Mapping[str, object] = output.multimodal_outputs
    if declared:
        payload = _take_declared(payload, declared, "", reading.declared)
    claimed = _extract(output, payload, routed, reading)
    if len(claimed) < len(payload):
        rest = {key: value for key, value in payload.items() if key not in claimed}
        _read_rest(rest, routed, reading)
    return reading


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


def _extract(
    output: OmniOutput, payload: Mapping[str, object], routed: Routed, reading: Reading
) -> set[str]:
    """Let every handler extract its part; the keys that are taken then."""
    if payload is not output.multimodal_outputs:
        output = _with_payload(output, payload)
    claimed: set[str] = set()
    for modality, handler in routed:
        if isinstance(handler, TensorHandler) and inherits(handler, "extract"):
            keys: Sequence[str] = [key for key in payload if key in handler.keys]
            if not keys:
                continue
            found = _call(handler, output, modality, keys, reading)
        else:
            watched = _Watched(payload)
            found = _call(handler, _with_payload(output, watched), modality, watched.reads, reading)
            keys = _taken(found, watched.reads, payload)
        claimed.update(keys)
        if found is not None:
            reading.values.append((modality, keys[0] if len(keys) == 1 else modality, found))
    return claimed


def _call(
    handler: ModalityHandler,
    output: OmniOutput,
    modality: str,
    keys: Sequence[str],
    reading: Reading,
) -> object | None:
    try:
        return handler.extract(output)
    except Exception as error:  # noqa: BLE001  # any fault of a handler fails its modality only
        key = keys[0] if keys and not isinstance(error, AccumulationError) else ""
        reading.failures.append((modality, key, error))
        return None


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


def _read_rest(rest: Mapping[str, object], routed: Routed, reading: Reading) -> None:
    """Sort what no handler extracted."""
    modalities = [modality for modality, _ in routed]
    generic = [key for key in GENERIC_KEYS if key in rest]
    if generic and modalities:
        _read_generic(generic, rest, modalities, reading)
    scalars: dict[str, Scalar] = {}
    for name, value in _leaves(rest, generic if modalities else ()):
        if type(value) not in _SCALARS and holds_tensor(value):
            if reading.failures:
                continue  # it may be what the failed handler would have extracted
            expected = f"a key of the output type ({_names(modalities)}) or of the OutputSpec"
            raise _refusal(expected, describe(value), key=name)
        if len(modalities) != 1:
            expected = f"a scalar nested under its modality ({_names(modalities)})"
            raise _refusal(expected, "a flat one", key=name)
        scalars[name] = scalar_of(value, name)
    if scalars:
        # Before the chunk that they describe, so that a wrong one keeps the chunk out.
        reading.values.insert(0, (modalities[0], "", scalars))


def _read_generic(
    generic: list[str], rest: Mapping[str, object], modalities: list[str], reading: Reading
) -> None:
    """Give the value under a generic key to the single non-text modality."""
    if len(modalities) > 1:
        expected = f"a key of one modality ({_names(modalities)})"
        raise _refusal(expected, "one that fits each of them: ambiguous", key=generic[0])
    if reading.failures:
        return  # the modality fails; there is nothing to add to it
    (modality,) = modalities
    keys = [key for _, key, _ in reading.values] + generic
    if len(keys) > 1:
        message = f"expected one key for {modality}, got {' and '.join(keys)}: ambiguous"
        reading.failures.append((modality, keys[0], AccumulationError(message, "", modality)))
        reading.values.clear()
    else:
        reading.values.append((modality, generic[0], rest[generic[0]]))


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

    Raises:
        AccumulationError: The value is something else.
    """
    if type(value) not in _SCALARS and isinstance(value, torch.Tensor | TensorHandle):
        value = resolved(value).item() if len(value.shape) == 0 else value
    if isinstance(value, int | float | str):
        return value
    raise _refusal("a scalar or a string", describe(value), key=key)


def _names(modalities: Sequence[str]) -> str:
    return ", ".join(modalities) or "text alone"


def _refusal(expected: str, got: str, *, key: str) -> AccumulationError:
    return AccumulationError(f"expected {expected}, got {got}", "", "", key)
