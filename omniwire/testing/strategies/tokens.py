"""Token ids."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from omniwire.contracts import TokenIds

_INT32_MAX = 2**31 - 1


def token_ids(*, min_size: int = 0, max_size: int = 12) -> SearchStrategy[TokenIds]:
    """Token ids, small ones and all of int32.

    Args:
        min_size: Fewest ids.
        max_size: Most ids.

    >>> from hypothesis import find
    >>> list(find(token_ids(min_size=2), lambda ids: True))
    [0, 0]
    """
    ids = st.integers(0, 100) | st.integers(0, _INT32_MAX)
    return st.lists(ids, min_size=min_size, max_size=max_size).map(TokenIds)
