"""Short descriptions of values for errors and reprs: shapes and types, never a payload."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch

_MAX_TEXT = 60
_MAX_INT_BITS = 128
_DTYPE_PREFIXES = (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i"))


def dtype_name(dtype: torch.dtype | np.dtype[np.generic]) -> str:
    """The short name of a data type: `bf16`, `f8_e4m3fn`, `u8`, `bool`."""
    name = str(dtype).removeprefix("torch.")
    for prefix, short in _DTYPE_PREFIXES:
        if re.match(rf"{prefix}\d", name):
            return short + name.removeprefix(prefix)
    return name


def describe_tensor(dtype: torch.dtype | np.dtype[np.generic], shape: Sequence[int]) -> str:
    """A tensor's data type and shape: `bf16[729, 1152]`."""
    return f"{dtype_name(dtype)}[{', '.join(map(str, shape))}]"


def _describe_torch(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return f"nested {dtype_name(tensor.dtype)} tensor"
    text = describe_tensor(tensor.dtype, tensor.shape)
    if tensor.layout is not torch.strided:
        text = f"{str(tensor.layout).removeprefix('torch.')} {text}"
    if tensor.is_quantized:
        text = f"quantized {text}"
    if type(tensor) is not torch.Tensor:
        text = f"{type(tensor).__name__} {text}"
    if tensor.device.type != "cpu":
        text = f"{text} on {tensor.device.type}"
    return text


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def describe(value: object) -> str:
    """Describe any value in a few words.

    Tensors and arrays print as data type and shape, containers as their kind and length,
    other objects as their type: no `__repr__` of a foreign object is ever called.

    >>> import torch
    >>> describe(torch.zeros(729, 1152, dtype=torch.bfloat16))
    'bf16[729, 1152]'
    >>> describe([1, 2, 3]), describe("mp3"), describe(-1)
    ('list of 3', "'mp3'", '-1')
    """
    kind = type(value)  # what a proxy says of its class is not asked
    if issubclass(kind, torch.Tensor):
        assert isinstance(value, torch.Tensor)
        return _describe_torch(value)
    if issubclass(kind, np.ndarray):
        assert isinstance(value, np.ndarray)
        return f"numpy {describe_tensor(value.dtype, value.shape)}"
    if value is None or kind is bool or kind is float:
        return repr(value)
    if kind is int:
        assert isinstance(value, int)
        bits = value.bit_length()
        return repr(value) if bits <= _MAX_INT_BITS else f"int of {bits} bits"
    if kind is str:
        assert isinstance(value, str)
        return _shorten(ascii(value[: _MAX_TEXT + 1]))
    if kind in (bytes, bytearray):
        assert isinstance(value, bytes | bytearray)
        return f"{kind.__name__} of {len(value)}"
    if kind in (list, tuple, set, frozenset, dict):
        assert isinstance(value, list | tuple | set | frozenset | dict)
        return f"{kind.__name__} of {len(value)}"
    name = _qualified(kind)
    if isinstance(value, tuple | list | Mapping):
        return f"{name} of {len(value)}"
    return name


def _qualified(kind: type) -> str:
    module: object = kind.__module__  # a class may put anything there
    package = module.partition(".")[0] if type(module) is str else ""
    if package in ("", "builtins", "__main__", "omniwire"):
        return kind.__name__
    return f"{package}.{kind.__name__}"


def summarize(value: object) -> str:
    """Describe a contract's field for its repr: like `describe`, but shows what is inside."""
    if isinstance(value, tuple) and type(value) is tuple:
        shown = [summarize(item) for item in value[:8]]
        if len(value) > len(shown):
            shown.append(f"... {len(value)} in all")
        return f"({', '.join(shown)}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key!a}: {summarize(item)}" for key, item in value.items())
        return f"{{{inside}}}"
    if type(value).__module__.partition(".")[0] == "omniwire":
        return repr(value)
    return describe(value)
