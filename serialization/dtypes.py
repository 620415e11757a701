"""The closed, append-only table of data types and their codes on the wire.

A code is never changed or used again for another type. No name from the wire is ever looked
up in torch.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

_NARROW_INTEGERS: Final = (
    ("uint1", 28),
    ("uint2", 29),
    ("uint3", 30),
    ("uint4", 31),
    ("uint5", 32),
    ("uint6", 33),
    ("uint7", 34),
    ("int1", 35),
    ("int2", 36),
    ("int3", 37),
    ("int4", 38),
    ("int5", 39),
    ("int6", 40),
    ("int7", 41),
)  # by name, since torch's annotations do not list them

TORCH_CODES: Final[Mapping[torch.dtype, int]] = MappingProxyType(
    {
        torch.bool: 1,
        torch.uint8: 2,
        torch.int8: 3,
        torch.uint16: 4,
        torch.int16: 5,
        torch.uint32: 6,
        torch.int32: 7,
        torch.uint64: 8,
        torch.int64: 9,
        torch.float16: 10,
        torch.bfloat16: 11,
        torch.float32: 12,
        torch.float64: 13,
        torch.complex32: 14,
        torch.complex64: 15,
        torch.complex128: 16,
        torch.float8_e4m3fn: 17,
        torch.float8_e5m2: 18,
        torch.float8_e4m3fnuz: 19,
        torch.float8_e5m2fnuz: 20,
        torch.float8_e8m0fnu: 21,
        torch.float4_e2m1fn_x2: 22,
        torch.bits8: 23,
        torch.bits16: 24,
        torch.bits1x8: 25,
        torch.bits2x4: 26,
        torch.bits4x2: 27,
        **{getattr(torch, name): code for name, code in _NARROW_INTEGERS},
    }
)
"""Every data type of a strided, unquantized tensor, with its code."""

NUMPY_CODES: Final[Mapping[np.dtype[np.generic], int]] = MappingProxyType(
    {
        np.dtype(np.bool_): 1,
        np.dtype("<u1"): 2,
        np.dtype("<i1"): 3,
        np.dtype("<u2"): 4,
        np.dtype("<i2"): 5,
        np.dtype("<u4"): 6,
        np.dtype("<i4"): 7,
        np.dtype("<u8"): 8,
        np.dtype("<i8"): 9,
        np.dtype("<f2"): 10,
        np.dtype("<f4"): 12,
        np.dtype("<f8"): 13,
        np.dtype("<c8"): 15,
        np.dtype("<c16"): 16,
    }
)
"""The data types of numpy arrays; where torch has the same type, it has the same code."""

TORCH_DTYPES: Final[Mapping[int, torch.dtype]] = MappingProxyType(
    {code: dtype for dtype, code in TORCH_CODES.items()}
)
NUMPY_DTYPES: Final[Mapping[int, np.dtype[np.generic]]] = MappingProxyType(
    {code: dtype for dtype, code in NUMPY_CODES.items()}
)
