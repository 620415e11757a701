"""The codes of the wire format's msgpack extension types; append-only."""

from typing import Final

EXT_RECORD: Final = 1
"""The type name of the contract record that follows it in an array of two."""

EXT_TENSOR: Final = 2
"""A torch tensor: data type, shape, and its bytes or where they are."""

EXT_ARRAY: Final = 3
"""A numpy array, in the same form."""

EXT_TOKEN_IDS: Final = 4
"""`TokenIds`: little-endian int32."""

EXT_INT32S: Final = 5
"""A sequence of integers, each as little-endian int32; the same as an array of them."""

EXT_INT64S: Final = 6
"""A sequence of integers, each as little-endian int64; the same as an array of them."""

EXT_DIGESTS: Final = 7
"""A sequence of sequences of 8 integers, each as little-endian int32."""
