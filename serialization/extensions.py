"""The msgpack extension types of the wire format."""

import enum


class Extension(enum.IntEnum):
    """Codes of the extension types; append-only, like everything on the wire."""

    RECORD = 1
    """The type name of the contract record that follows it in an array of two."""
    TENSOR = 2
    """A torch tensor: data type, shape, and its bytes or where they are."""
    ARRAY = 3
    """A numpy array, in the same form."""
    TOKEN_IDS = 4
    """`TokenIds`: little-endian int32."""
    INT32S = 5
    """A sequence of integers, each as little-endian int32; the same as an array of them."""
    INT64S = 6
    """A sequence of integers, each as little-endian int64; the same as an array of them."""
    DIGESTS = 7
    """A sequence of sequences of 8 integers, each as little-endian int32."""
