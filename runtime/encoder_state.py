"""`MultimodalEncoderRequestState`: which items of a request are encoded, and what holds them."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from omniwire.contracts.checks import check_int
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error
from omniwire.contracts.items import MultimodalItemMetadata
from omniwire.contracts.params import EMBEDDING_KEY, ITEM_METADATA_KEY
from omniwire.contracts.requests import ProcessedRequest

_SUBJECT = "MultimodalEncoderRequestState"


class MultimodalEncoderRequestState:
    """Readiness and output references of a request's items; lives from admission to cleanup.

    The request owns it, in `MultimodalParams.encoder_state`, and it owns the references given
    to `complete`. Finish, abort and preemption call `release`, in any order and any number of
    times; each reference is released exactly once. It never leaves its process and is used
    from one thread.

    Args:
        request_id: The request.
        item_metadata: Its admitted record; lengths are read from there.
        is_encoded: Whether all items come with embeddings, so that none is to be encoded.
    """

    __slots__ = ("_is_released", "_item_metadata", "_ready", "_references", "_request_id")

    def __init__(
        self, request_id: str, item_metadata: MultimodalItemMetadata, *, is_encoded: bool = False
    ) -> None:
        self._request_id = request_id
        self._item_metadata = item_metadata
        self._ready = [is_encoded] * len(item_metadata.item_refs)
        self._references: list[object] = [None] * len(self._ready)
        self._is_released = False

    @classmethod
    def from_request(cls, request: ProcessedRequest) -> Self:
        """The state of an admitted request: no item ready, unless embeddings are attached.

        Raises:
            ContractTypeError: `request` is no request.
            ContractValueError: The request is text-only or has no item metadata record.
        """
        if type(request) is not ProcessedRequest:
            problem = Problem(("request",), "type", "a ProcessedRequest", describe(request))
            raise contract_error(_SUBJECT, [problem])
        params = request.multimodal_params
        if params is None:
            problem = Problem(("multimodal_params",), "missing", "a request with items", "None")
            raise contract_error("ProcessedRequest", [problem])
        record = params.item_metadata
        if record is None:
            path = ("multimodal_params", "multimodal_data", ITEM_METADATA_KEY)
            problem = Problem(path, "missing", "an item metadata record", "none")
            raise contract_error("ProcessedRequest", [problem])
        is_encoded = EMBEDDING_KEY in params.multimodal_data
        return cls(request.request_id, record, is_encoded=is_encoded)

    @property
    def request_id(self) -> str:
        """The request whose items these are."""
        return self._request_id

    @property
    def item_metadata(self) -> MultimodalItemMetadata:
        """The request's record."""
        return self._item_metadata

    @property
    def item_ready(self) -> tuple[bool, ...]:
        """Per item in prompt order, whether its embedding rows exist."""
        return tuple(self._ready)

    @property
    def pending_items(self) -> tuple[int, ...]:
        """Prompt indices of the items still to be encoded, ascending; none after `release`."""
        if self._is_released:
            return ()
        return tuple([index for index, is_ready in enumerate(self._ready) if not is_ready])

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._is_released

    def reference(self, index: int) -> object:
        """What holds the rows of the item at a prompt index, None if nothing does.

        Raises:
            ContractTypeError: `index` is not an int.
            ContractValueError: `index` is out of range.
        """
        self._check_index(index)
        return self._references[index]

    def complete(self, index: int, ref: object) -> None:
        """Mark an item as encoded and take over the reference to its rows.

        After `release` (an encoder finished for a request that was aborted meanwhile) the
        reference is released at once and the item stays as it is.

        Args:
            index: Prompt index of the item.
            ref: What holds its rows: a `CacheLease` or anything else with a `release` method,
                which is called once; other values, such as a tensor, are just let go.

        Raises:
            ContractTypeError: `index` is not an int.
            ContractValueError: `index` is out of range or the item is complete already; the
                reference stays the caller's.
        """
        self._check_index(index)
        if self._is_released:
            _release_all([ref])
            return
        if self._ready[index]:
            problem = Problem(("index",), "duplicate", "an item still pending", str(index))
            raise contract_error(_SUBJECT, [problem])
        self._ready[index] = True
        self._references[index] = ref

    def release(self) -> None:
        """Release every reference; the second and later calls find none left."""
        self._is_released = True
        references = self._references
        self._references = [None for _ in references]
        self._ready = [False] * len(self._ready)
        _release_all(references)

    def _check_index(self, index: int) -> None:
        problems: list[Problem] = []
        if check_int(problems, ("index",), index, 0) and index >= len(self._ready):
            expected = f"an index in [0, {len(self._ready)})"
            problems.append(Problem(("index",), "index", expected, str(index)))
        if problems:
            raise contract_error(_SUBJECT, problems)


def _release_all(references: Sequence[object]) -> None:
    """Release every reference, also when one of them raises."""
    with ExitStack() as stack:
        for reference in references:
            release = getattr(reference, "release", None)
            if release is not None:
                stack.callback(release)
