"""`content_hash`: one digest for one content, in every process."""

import enum
import hashlib
import struct
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.errors import OmniwireError, Problem, contract_error, error_arguments
from omniwire.contracts.frozen import freeze
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.items import ItemRef
from omniwire.contracts.tensors import array_bytes, logical_bytes
from omniwire.contracts.tokens import TokenIds

_DOMAIN: Final = b"omniwire content hash 1\n"
_LENGTH: Final = struct.Struct("<Q")
_FLOAT: Final = struct.Struct("<d")


def content_hash(obj: object) -> str:
    """The SHA-256 of a value's content: 64 hex digits, the same in every process.

    Type, shape, dtype and every bit count; key order, memory layout, strides and the device
    do not. A list counts as the tuple it becomes in a contract. `encoder_state` is left out, as
    it is of `==`. A handle counts as the tensor it resolves to.

    Args:
        obj: A contract, or any value that may stand in `multimodal_data`.

    Raises:
        ContractError: The value, or a part of it, may not stand in `multimodal_data`.
        HandoffError: A handle cannot be resolved.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    >>> image = torch.arange(24.0)
    >>> content_hash(image.view(6, 4)) == content_hash(image.view(4, 6))
    False
    """
    problems: list[Problem] = []
    frozen = freeze(obj, (), problems)
    if problems:
        raise contract_error("content_hash", problems)
    digest = hashlib.sha256(_DOMAIN)
    _feed(digest, frozen)
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", value: object) -> None:
    """Add a tag, which says the type, and a framed encoding of the value."""
    if value is None:
        digest.update(b"N")
    elif type(value) is bool:
        digest.update(b"T" if value else b"F")
    elif type(value) is int:
        _feed_bytes(digest, b"I", str(value).encode())
    elif type(value) is float:
        digest.update(b"D" + _FLOAT.pack(value))
    elif type(value) is str:  # only the text of an error may hold surrogates
        _feed_bytes(digest, b"S", value.encode(errors="surrogatepass"))
    elif type(value) is bytes:
        _feed_bytes(digest, b"B", value)
    elif isinstance(value, tuple) and not isinstance(value, Contract):
        digest.update(b"L" + _LENGTH.pack(len(value)))
        for item in value:
            _feed(digest, item)
    elif isinstance(value, Mapping):
        digest.update(b"M" + _LENGTH.pack(len(value)))
        for key in sorted(value):
            _feed_bytes(digest, b"K", key.encode())
            _feed(digest, value[key])
    elif isinstance(value, torch.Tensor):
        _feed_shape(digest, b"X", str(value.dtype).removeprefix("torch."), tuple(value.shape))
        _feed_array(digest, logical_bytes(value).cpu().numpy())
    elif isinstance(value, np.ndarray):
        _feed_shape(digest, b"A", value.dtype.name, value.shape)
        _feed_array(digest, array_bytes(value))
    elif isinstance(value, enum.Enum):
        _feed_bytes(digest, b"E", str(value).encode())
    elif isinstance(value, OmniwireError):
        _feed_bytes(digest, b"R", type(value).__name__.encode())
        _feed(digest, error_arguments(value))
    else:
        assert isinstance(value, Contract)
        _feed_contract(digest, value)


def _feed_contract(digest: "hashlib._Hash", value: Contract) -> None:
    if isinstance(value, TensorHandle):
        _feed(digest, value.resolve())
        return
    _feed_bytes(digest, b"C", type(value).__name__.encode())
    if isinstance(value, TokenIds):
        _feed_bytes(digest, b"P", value.tobytes())
    elif isinstance(value, ItemRef):
        _feed(digest, tuple(value))
    else:
        for name in value._comparable_fields():
            _feed_bytes(digest, b"K", name.encode())
            _feed(digest, getattr(value, name))


def _feed_bytes(digest: "hashlib._Hash", tag: bytes, content: bytes) -> None:
    digest.update(tag + _LENGTH.pack(len(content)))
    digest.update(content)


def _feed_shape(digest: "hashlib._Hash", tag: bytes, dtype: str, shape: tuple[int, ...]) -> None:
    _feed_bytes(digest, tag, dtype.encode())
    digest.update(_LENGTH.pack(len(shape)) + b"".join(map(_LENGTH.pack, shape)))


def _feed_array(digest: "hashlib._Hash", content: np.ndarray) -> None:
    digest.update(_LENGTH.pack(content.size))
    digest.update(content.data)
