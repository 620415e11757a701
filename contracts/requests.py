"""What a processor hands over: the request, and the encoder/prefill transport envelope."""

from collections.abc import Iterable, Sequence

import attrs

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import (
    check_count,
    check_instance,
    check_text,
    each,
    raise_problems,
    tupled,
)
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.inputs import HashWords, as_hashes, check_hashes
from omniwire.contracts.params import MultimodalParams
from omniwire.contracts.tokens import TokenIds, as_token_ids, take_token_ids


@attrs.frozen(eq=False, repr=False)
class ProcessedRequest(Contract):
    """One request as the processor hands it to the executor. Unhashable.

    Attributes:
        request_id: Non-empty.
        prompt_token_ids: The whole prompt, placeholders included.
        multimodal_params: None for a text-only request.

    Raises:
        ContractTypeError: A field has the wrong type.
        ContractValueError: The id is empty, or a token id is out of range.

    What needs several of its parts together is checked by `check_producer`.

    >>> ProcessedRequest("r1", [1, 5, 2]).prompt_token_ids == (1, 5, 2)
    True
    """

    request_id: str
    prompt_token_ids: TokenIds = attrs.field(converter=as_token_ids)
    multimodal_params: MultimodalParams | None = None

    __hash__ = None  # type: ignore[assignment]  # holds tensors

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        check_text(problems, ("request_id",), self.request_id)
        take_token_ids(self.prompt_token_ids, "prompt_token_ids", problems)
        params, path = self.multimodal_params, ("multimodal_params",)
        if params is not None:
            check_instance(problems, path, params, MultimodalParams, "MultimodalParams or None")
        raise_problems("ProcessedRequest", problems)


def _as_handles(value: Iterable[TensorHandle] | None) -> tuple[TensorHandle, ...] | None:
    return tupled(value)  # type: ignore[no-any-return]  # judged by the validator


def _as_optional_hashes(value: Iterable[Sequence[int]] | None) -> tuple[HashWords, ...] | None:
    return None if value is None else as_hashes(value)


@attrs.frozen(eq=False, repr=False)
class DisaggregatedParams(Contract):
    """The envelope that an orchestrator carries from the encoder to the prefill side. Unhashable.

    Attributes:
        multimodal_embedding_handles: One handle per item, or None.
        multimodal_hashes: One content hash (8 signed int32 words) per item, or None; as many
            as handles where both are given.
        request_type: What the receiver is asked to do, such as `"prefill"`; non-empty.
        opaque_state: Bytes that only the engine understands, or None.

    Raises:
        ContractTypeError: A field has the wrong type.
        ContractValueError: The counts differ, a hash is malformed or the type is empty.
    """

    multimodal_embedding_handles: tuple[TensorHandle, ...] | None = attrs.field(
        default=None, converter=_as_handles
    )
    multimodal_hashes: tuple[HashWords, ...] | None = attrs.field(
        default=None, converter=_as_optional_hashes
    )
    request_type: str = "prefill"
    opaque_state: bytes | None = None

    __hash__ = None  # type: ignore[assignment]  # holds handles

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        handles, hashes = self.multimodal_embedding_handles, self.multimodal_hashes
        path = ("multimodal_embedding_handles",)
        if handles is not None:
            if type(handles) is not tuple:
                problems.append(Problem(path, "type", "a tuple of handles", describe(handles)))
            else:
                for index, handle in each(handles, problems):
                    where = (*path, index)
                    check_instance(problems, where, handle, TensorHandle, "a TensorHandle")
        path = ("multimodal_hashes",)
        sound = hashes is None or check_hashes(hashes, path, problems)
        if sound and hashes is not None and type(handles) is tuple:
            check_count(problems, path, len(hashes), len(handles), "hashes")
        check_text(problems, ("request_type",), self.request_type)
        if self.opaque_state is not None:
            check_instance(problems, ("opaque_state",), self.opaque_state, bytes, "bytes or None")
        raise_problems("DisaggregatedParams", problems)
