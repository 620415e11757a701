"""Chunk rows: the worked windows, views and the one concatenation, refusals."""

import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    MultimodalParams,
    MultimodalRuntimeData,
    TensorHandle,
)
from omniwire.runtime import chunk_embeddings

MASK = [0, 1, 1, 0, 0, 1, 1, 1]  # items of 2 and 3 rows


def chunk(start: int, end: int, mask: list[int]) -> MultimodalRuntimeData:
    return MultimodalRuntimeData.for_chunk(
        past_seen_token_num=start, chunk_end_pos=end, embed_mask=mask
    )


def items(*row_counts: int) -> list[torch.Tensor]:
    """Items whose rows are numbered through the request from 0."""
    starts = [sum(row_counts[:index]) for index in range(len(row_counts))]
    return [
        torch.arange(start, start + count).reshape(-1, 1)
        for start, count in zip(starts, row_counts, strict=True)
    ]


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [(0, 5, [0, 1, 2]), (5, 8, [3, 4]), (0, 8, [0, 1, 2, 3, 4]), (3, 4, [])],
)
def test_windows_over_one_item(start: int, end: int, rows: list[int]) -> None:
    window = chunk(start, end, [0, 1, 1, 0, 1, 1, 1, 0])
    assert chunk_embeddings(items(5), window).flatten().tolist() == rows


@pytest.mark.parametrize(
    ("start", "end", "rows", "item"),
    [
        (0, 3, [0, 1], 0),
        (6, 8, [3, 4], 1),
        (3, 5, [], 0),
        (5, 8, [2, 3, 4], 1),
        (1, 2, [0], 0),
    ],
)
def test_a_window_inside_one_item_is_a_view(
    start: int, end: int, rows: list[int], item: int
) -> None:
    embeddings = [torch.tensor([[0], [1]]), torch.tensor([[2], [3], [4]])]
    found = chunk_embeddings(embeddings, chunk(start, end, MASK))
    assert found.flatten().tolist() == rows
    assert found.shape == (len(rows), 1)
    storage = embeddings[item].untyped_storage().data_ptr()
    assert found.untyped_storage().data_ptr() == storage


def test_a_window_over_two_items_is_exactly_one_concatenation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    concatenations: list[int] = []
    concatenate = torch.cat

    def counted(pieces: list[torch.Tensor]) -> torch.Tensor:
        concatenations.append(len(pieces))
        return concatenate(pieces)

    monkeypatch.setattr(torch, "cat", counted)
    assert chunk_embeddings(items(2, 3), chunk(2, 7, MASK)).flatten().tolist() == [1, 2, 3]
    assert concatenations == [2]


def test_an_item_cut_by_every_chunk_boundary_loses_and_repeats_no_row() -> None:
    """vllm#52306, vllm#33344: chunks of every size over an item that crosses their ends."""
    for size in range(1, 9):
        starts = range(0, len(MASK), size)
        rows = [
            row
            for start in starts
            for row in chunk_embeddings(
                items(2, 3), chunk(start, min(start + size, len(MASK)), MASK)
            )
            .flatten()
            .tolist()
        ]
        assert rows == [0, 1, 2, 3, 4]


def test_a_chunk_without_placeholders_has_no_rows() -> None:
    """vllm#18414: also if none of its items is encoded yet."""
    assert chunk_embeddings([], chunk(3, 5, MASK)).shape[0] == 0
    assert chunk_embeddings(items(2), chunk(3, 5, MASK)).shape == (0, 1)


def test_the_last_token_of_a_prompt_is_a_chunk_like_any_other() -> None:
    """vllm-omni#4382: prompt of 513, chunks of 512; the window and not its size says which."""
    mask = [0] * 511 + [1, 1]
    assert chunk_embeddings(items(2), chunk(0, 512, mask)).flatten().tolist() == [0]
    assert chunk_embeddings(items(2), chunk(512, 513, mask)).flatten().tolist() == [1]


def test_rows_are_those_of_the_accepted_tokens() -> None:
    """vllm-omni#6863: the window decides, not what was scheduled before."""
    assert chunk_embeddings(items(4), chunk(1, 3, [1, 1, 1, 1])).flatten().tolist() == [1, 2]


def test_framing_tokens_yield_no_row() -> None:
    """TensorRT-LLM#12944, vllm-omni#7509, #7510: tokens 1 5 5 6 5 7 2 with framing 6 and 7."""
    mask = [0, 1, 1, 0, 1, 0, 0]
    assert chunk_embeddings(items(3), chunk(0, 4, mask)).flatten().tolist() == [0, 1]
    assert chunk_embeddings(items(3), chunk(4, 7, mask)).flatten().tolist() == [2]


def test_each_request_of_a_batch_keeps_its_own_window() -> None:
    """TensorRT-LLM#16460, #16504: windows (0, 2), none, (1, 3) over three requests."""
    requests = [torch.tensor([[10 * n], [10 * n + 1], [10 * n + 2]]) for n in (1, 2, 3)]
    mask = [1, 1, 1]
    windows = [chunk(0, 2, mask), None, chunk(1, 3, mask)]
    rows = [
        chunk_embeddings([request], window).flatten().tolist()
        for request, window in zip(requests, windows, strict=True)
    ]
    assert rows == [[10, 11], [20, 21, 22], [31, 32]]


def test_attached_embeddings_of_any_form_will_do() -> None:
    whole = torch.arange(5).reshape(5, 1)
    handle = TensorHandle("local", torch.int64, (5, 1), whole)
    for embeddings in (whole, handle, (handle,), (whole[:2], whole[2:])):
        params = MultimodalParams.from_embeddings(embeddings)
        assert params.embeddings is not None
        found = chunk_embeddings(params.embeddings, chunk(6, 8, MASK))
        assert found.flatten().tolist() == [3, 4]
        assert found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_items_after_the_chunk_may_be_missing() -> None:
    assert chunk_embeddings(items(2), chunk(0, 3, MASK)).flatten().tolist() == [0, 1]


@pytest.mark.parametrize("row_counts", [(2,), (2, 2), (2, 4)])
def test_missing_and_surplus_rows_are_errors(row_counts: tuple[int, ...]) -> None:
    with pytest.raises(ContractValueError) as caught:
        chunk_embeddings(items(*row_counts), chunk(2, 8, MASK))
    problem = caught.value.problems[0]
    assert (problem.path, problem.code) == (("item_embeddings",), "count")
    assert problem.got == str(sum(row_counts))


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (torch.zeros(3), "shape"),
        (torch.zeros(3, 2, dtype=torch.int64), "shape"),
        (torch.zeros(3, 1), "dtype"),
        (torch.zeros(3, 1, dtype=torch.int64, device="meta"), "device"),
    ],
)
def test_items_that_cannot_be_joined_are_errors(second: torch.Tensor, code: str) -> None:
    with pytest.raises(ContractValueError) as caught:
        chunk_embeddings([*items(2), second], chunk(0, 8, MASK))
    assert [(p.path, p.code) for p in caught.value.problems] == [(("item_embeddings", 1), code)]


def test_an_item_that_is_no_tensor_is_an_error() -> None:
    with pytest.raises(ContractTypeError) as caught:
        chunk_embeddings([*items(2), None], chunk(0, 8, MASK))  # type: ignore[list-item]  # what is tested
    assert caught.value.problems[0].path == ("item_embeddings", 1)
