"""`Limits`: what a reader is willing to take from a message."""

import attrs

from omniwire.contracts.checks import check_int, raise_problems
from omniwire.contracts.errors import Problem
from omniwire.contracts.frozen import MAX_PAYLOAD_DEPTH, MAX_PAYLOAD_ELEMENTS


@attrs.frozen
class Limits:
    """Upper bounds that a decoder holds a message to, before it uses any of it.

    A decoder allocates in proportion to the bytes that arrived, never to a number that a
    message declares; these bounds keep that proportion in check. All must be >= 0.

    Attributes:
        max_header_bytes: Size of frame 0.
        max_depth: Levels of nesting of mappings, tuples and records in a payload. Contracts
            hold no more than the default, so a larger number changes nothing.
        max_elements: Values in the header: every scalar, key, mapping and sequence, and every
            integer of a packed sequence.
        max_tensors: Tensors and arrays, each reference counted.
        max_total_bytes: Bytes of all tensors and arrays together as declared, each reference
            counted.

    Raises:
        ContractTypeError: A bound is not an int.
        ContractValueError: A bound is negative.

    >>> Limits(max_tensors=10).max_tensors
    10
    """

    max_header_bytes: int = 2**27
    max_depth: int = MAX_PAYLOAD_DEPTH
    max_elements: int = MAX_PAYLOAD_ELEMENTS
    max_tensors: int = 2**16
    max_total_bytes: int = 2**36

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        for field in attrs.fields(Limits):
            check_int(problems, (field.name,), getattr(self, field.name), 0)
        raise_problems("Limits", problems)
