"""Structural equality of everything a contract may hold."""

import struct
from collections.abc import Mapping

import numpy as np
import torch

from omniwire.contracts.tensors import arrays_equal, tensors_equal


def structurally_equal(left: object, right: object) -> bool:
    """Whether two values are the same in type, structure and every bit.

    A bool never equals an int and an int never equals a float: what is equal here is equal
    on the wire. Mappings compare without regard to key order.
    """
    if left is right:
        return True
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            structurally_equal(value, right[key]) for key, value in left.items()
        )
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is tuple:
        assert isinstance(left, tuple)
        assert isinstance(right, tuple)
        return len(left) == len(right) and all(map(structurally_equal, left, right))
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        return tensors_equal(left, right)
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        return arrays_equal(left, right)
    if kind is float:
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, BaseException):
        assert isinstance(right, BaseException)
        return left.__reduce__() == right.__reduce__()
    return bool(left == right)


def structural_hash(value: object) -> int:
    """A hash that agrees with `structurally_equal`.

    Raises:
        TypeError: `value` holds a tensor or an array, whose bits may change.
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        raise TypeError(f"unhashable: holds a {type(value).__name__}")
    if isinstance(value, Mapping):
        return hash(frozenset((key, structural_hash(item)) for key, item in value.items()))
    if type(value) is tuple:
        return hash(tuple(map(structural_hash, value)))
    if type(value) is float:
        return hash(struct.pack("<d", value))
    return hash(value)
