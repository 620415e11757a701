"""The wording of messages, descriptions and reprs; no other file of tests asserts any."""

import traceback

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    AccumulationError,
    AdmissionError,
    ContractError,
    ContractValueError,
    DecodeError,
    EncodeError,
    EncoderBudget,
    EncoderCapability,
    FrozenMapping,
    HandlerNotFoundError,
    HandoffError,
    ItemRef,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    MultimodalRuntimeData,
    OmniOutput,
    OutputSpec,
    Problem,
    ProcessedRequest,
    Replace,
    RequestOutput,
    TensorHandle,
    TokenIds,
    UnsupportedVersionError,
    check_admission,
    check_producer,
)
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import format_path

HASH = (0,) * 8


class Foreign:
    pass


class Words(list):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(729, 1152, dtype=torch.bfloat16), "bf16[729, 1152]"),
        (torch.zeros(()), "f32[]"),
        (torch.zeros(0, 4, dtype=torch.float8_e4m3fn), "f8_e4m3fn[0, 4]"),
        (torch.zeros(2, dtype=torch.uint8), "u8[2]"),
        (torch.zeros(2, dtype=torch.int64), "i64[2]"),
        (torch.zeros(2, dtype=torch.bool), "bool[2]"),
        (torch.zeros(2, dtype=torch.complex64), "c64[2]"),
        (torch.zeros(2, device="meta"), "f32[2] on meta"),
        (torch.zeros(2).to_sparse(), "sparse_coo f32[2]"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter f32[2]"),
        (np.zeros((2, 3), np.float16), "numpy f16[2, 3]"),
        (np.zeros(1, ">i4"), "numpy >i4[1]"),
        (np.array([None]), "numpy object[1]"),
        (None, "None"),
        (True, "True"),
        (-1, "-1"),
        (2**127, str(2**127)),
        (2**128, "int of 129 bits"),
        (2**200, "int of 201 bits"),
        (10**5000, "int of 16610 bits"),
        (0.5, "0.5"),
        (float("nan"), "nan"),
        ("mp3", "'mp3'"),
        ("é\ud800", "'\\xe9\\ud800'"),
        ("x" * 58, "'" + "x" * 58 + "'"),
        ("x" * 59, "'" + "x" * 56 + "..."),
        ("x" * 1000, "'" + "x" * 56 + "..."),
        (b"secret", "bytes of 6"),
        (bytearray(3), "bytearray of 3"),
        ([1, 2, 3], "list of 3"),
        ((), "tuple of 0"),
        ({1}, "set of 1"),
        ({"a": 1}, "dict of 1"),
        (Words("ab"), "tests.Words of 2"),
        (ItemRef("image", 0), "ItemRef of 2"),
        (FrozenMapping({"a": 1}), "FrozenMapping of 1"),
        (MultimodalParams(), "MultimodalParams"),
        (np.int64(5), "numpy.int64"),
        (object(), "object"),
        (int, "type"),
        (Foreign(), "tests.Foreign"),
        (ValueError("secret"), "ValueError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_in_a_few_words(value: object, words: str) -> None:
    found = describe(value)
    module = Words.__module__.partition(".")[0]  # whatever the tests are imported as
    assert found == words.replace("tests.", f"{module}.")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_odd_tensors_in_a_few_words() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    quantized = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)
    assert describe(nested) == "nested f32 tensor"
    assert describe(quantized) == "quantized quint8[2]"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "$"),
        (("image", "image_grid_thw", 0), "$.image.image_grid_thw[0]"),
        ((5, "a"), "$[5].a"),
        (
            ("codes.audio", "", "1a", "é", "it's", "\ud800"),
            "$['codes.audio']['']['1a']['\\xe9'][\"it's\"]['\\ud800']",
        ),
    ],
)
def test_a_path(path: tuple, text: str) -> None:
    assert format_path(path) == text


PARTITIONS = {"image": {"image_grid_thw": MultimodalItemPartition()}}
THREE_IMAGES = MultimodalItemMetadata([("image", i) for i in range(3)], input_partitions=PARTITIONS)


def three_images_with_two_grids() -> ProcessedRequest:
    grid = torch.ones(2, 3, dtype=torch.int64)
    data = {"image": {"image_grid_thw": grid}, "item_metadata": THREE_IMAGES}
    return ProcessedRequest("r1", [1], MultimodalParams(multimodal_data=data))


def with_embeddings(embeddings: object) -> ProcessedRequest:
    return ProcessedRequest("r1", [1], MultimodalParams.from_embeddings(embeddings))


def two_images_too_large() -> ProcessedRequest:
    record = MultimodalItemMetadata([("image", 0), ("image", 1)], [64, 128], [4, 9], {"image": {}})
    return ProcessedRequest("r1", [1], MultimodalParams(multimodal_data={"item_metadata": record}))


MESSAGES = {
    "ProcessedRequest: expected 3 items along axis 0, got 2 "
    "- at $.multimodal_params.multimodal_data.image.image_grid_thw": (
        lambda: check_producer(three_images_with_two_grids())
    ),
    "ItemRef: expected a modality name ([a-z][a-z0-9_]{0,63}), got 'Image' - at $.modality\n"
    "ItemRef: expected an int, got True - at $.index": lambda: ItemRef("Image", True),
    "MultimodalItemPartition: expected an int of at least 0, got -1 - at $.item_lengths[1]": (
        lambda: MultimodalItemPartition([1, -1])
    ),
    "MultimodalInput: expected 8 hash words, got 7 - at $.multimodal_hashes[0]": (
        lambda: MultimodalInput([HASH[1:]], [0], [1])
    ),
    "MultimodalInput: expected a signed 32-bit int, got 2147483648 "
    "- at $.multimodal_hashes[0][7]": (lambda: MultimodalInput([(*HASH[1:], 2**31)], [0], [1])),
    "MultimodalInput: expected an int of 0 to 2147483647, got -1 - at $.multimodal_positions[0]": (
        lambda: MultimodalInput([HASH], [-1], [1])
    ),
    "MultimodalInput: expected an end of at most 2147483647, got 2147483648 "
    "- at $.multimodal_lengths[0]": lambda: MultimodalInput([HASH], [2**31 - 3], [3]),
    "MultimodalInput: expected a run of item 0 at or after position 4, got 3 "
    "- at $.multimodal_run_positions[1]": (
        lambda: MultimodalInput([HASH], [2], [3], None, [0, 2], [2, 3], [2, 1])
    ),
    "MultimodalItemMetadata: expected each item once, got (image, 0) again - at $.item_refs[1]": (
        lambda: MultimodalItemMetadata([("image", 0), ("image", 0)])
    ),
    "MultimodalItemMetadata: expected image indices 0 to 1, one for each of its items, "
    "got (image, 2) - at $.item_refs[1]": (
        lambda: MultimodalItemMetadata([("image", 0), ("image", 2)])
    ),
    "MultimodalItemMetadata: expected a modality among the items (image), got 'audio' "
    "- at $.input_partitions.audio": (
        lambda: MultimodalItemMetadata([("image", 0)], input_partitions={"audio": {}})
    ),
    "MultimodalItemMetadata: expected a modality among the items (there are none), got 'audio' "
    "- at $.input_partitions.audio": (
        lambda: MultimodalItemMetadata([], input_partitions={"audio": {}})
    ),
    "MultimodalItemMetadata: expected a (modality, index) pair, got 'ab' - at $.item_refs[0]": (
        lambda: MultimodalItemMetadata(["ab"])
    ),
    "MultimodalItemMetadata: expected 6 as in the other record, got 7 "
    "- at $.output_embedding_lengths[1]": (
        lambda: MultimodalItemMetadata([("image", 0), ("image", 1)], None, [4, 6]).merge(
            MultimodalItemMetadata([("image", 0), ("image", 1)], None, [4, 7])
        )
    ),
    "MultimodalItemMetadata: expected a shared field as in the other record, "
    "got packed (2,) along axis 1 - at $.input_partitions.image.a": (
        lambda: MultimodalItemMetadata([("image", 0)], input_partitions={"image": {}}).merge(
            MultimodalItemMetadata(
                [("image", 0)],
                input_partitions={"image": {"a": MultimodalItemPartition((2,), 1)}},
            )
        )
    ),
    "MultimodalItemMetadata: expected (image, 0) as in the other record, got (audio, 0) "
    "- at $.item_refs[0]": (
        lambda: MultimodalItemMetadata([("image", 0)]).merge(MultimodalItemMetadata([("audio", 0)]))
    ),
    "MultimodalItemMetadata: expected an index in [0, 1), got 1 - at $.prompt_indices[0]": (
        lambda: MultimodalItemMetadata([("image", 0)]).select([1])
    ),
    "MultimodalItemMetadata: expected at least one index, got an empty selection "
    "- at $.prompt_indices": lambda: MultimodalItemMetadata([("image", 0)]).select([]),
    "MultimodalParams: expected an array in native byte order, got >i4 data "
    "- at $.multimodal_data.image.a": (
        lambda: MultimodalParams(multimodal_data={"image": {"a": np.zeros(1, ">i4")}})
    ),
    "MultimodalParams: expected a plain strided tensor with storage, got sparse_coo f32[2] "
    "- at $.multimodal_data.image[0]": (
        lambda: MultimodalParams(multimodal_data={"image": [torch.zeros(2).to_sparse()]})
    ),
    "FrozenMapping: expected a tensor, numpy array, contract record, str, int, float, bool, None, "
    "bytes, or a tuple or mapping of those, got set of 1 - at $.a": (
        lambda: FrozenMapping({"a": {1}})
    ),
    "FrozenMapping: expected string keys, got the key 1 - at $": lambda: FrozenMapping({1: 2}),
    "TokenIds: expected a token id of 0 to 2147483647, got -1 - at $[1]": (
        lambda: TokenIds([0, -1])
    ),
    "TokenIds.frombytes: expected bytes or bytearray or memoryview, got 8 - at $.buffer": (
        lambda: TokenIds.frombytes(8)
    ),
    "MultimodalParams.from_embeddings: expected MultimodalItemMetadata or None, "
    "got f32[1] - at $.item_metadata": (
        lambda: MultimodalParams.from_embeddings(torch.zeros(1, 1), torch.zeros(1))
    ),
    "TensorHandle: expected f32[2, 3], got f32[3, 2] - at $.payload": (
        lambda: TensorHandle("local", torch.float32, (2, 3), torch.zeros(3, 2))
    ),
    "OmniOutput: expected a tensor, scalar, string, tuple of tensors or a mapping of those, "
    "got None - at $.multimodal_outputs.audio": lambda: OmniOutput(None, {"audio": None}),
    "OutputSpec: expected names joined by dots, got 'a.' - at $.entries['a.']": (
        lambda: OutputSpec({"a.": Replace()})
    ),
    "EncoderBudget: expected the bytes of a row, which max_output_bytes needs, got None "
    "- at $.output_row_bytes": lambda: EncoderBudget(max_output_bytes=5),
    "MultimodalRuntimeData: expected a position within the 2 prompt tokens, got 3 "
    "- at $.chunk_end_pos": (
        lambda: MultimodalRuntimeData.for_chunk(
            past_seen_token_num=0, chunk_end_pos=3, embed_mask=[0, 1]
        )
    ),
    "RequestOutput: expected a mapping of modality to error, got list of 0 - at $.errors": (
        lambda: RequestOutput("r1", errors=[])
    ),
    "MultimodalRuntimeData: expected exactly one of embed_mask, embed_mask_cumsum, "
    "multimodal_input, got none - at $": (
        lambda: MultimodalRuntimeData.for_chunk(past_seen_token_num=0, chunk_end_pos=0)
    ),
    "MultimodalRuntimeData: expected exactly one of embed_mask, embed_mask_cumsum, "
    "multimodal_input, got embed_mask and embed_mask_cumsum - at $": (
        lambda: MultimodalRuntimeData.for_chunk(
            past_seen_token_num=0, chunk_end_pos=0, embed_mask=[], embed_mask_cumsum=[]
        )
    ),
    "ProcessedRequest: expected embeddings of shape [rows, hidden], got f32[5] "
    "- at $.multimodal_params.multimodal_data.multimodal_embedding": (
        lambda: check_producer(with_embeddings(torch.zeros(5)))
    ),
    "ProcessedRequest: expected embeddings of shape [rows, hidden], "
    "got TensorHandle(arena, f32[5]) "
    "- at $.multimodal_params.multimodal_data.multimodal_embedding": (
        lambda: check_producer(with_embeddings(TensorHandle("arena", torch.float32, (5,), b"x")))
    ),
    "ProcessedRequest: expected rows of the model's hidden size 8, got 7 "
    "- at $.multimodal_params.multimodal_data.multimodal_embedding": (
        lambda: check_admission(
            with_embeddings(torch.zeros(2, 7)), EncoderCapability(hidden_size=8)
        )
    ),
    "MultimodalRuntimeData: expected 0 or 1, got 2 - at $.embed_mask[1]": (
        lambda: MultimodalRuntimeData.for_chunk(
            past_seen_token_num=0, chunk_end_pos=1, embed_mask=[0, 2]
        )
    ),
    "MultimodalRuntimeData: expected a count that grows by 0 or 1 a token, got 2 "
    "- at $.embed_mask_cumsum[1]": (
        lambda: MultimodalRuntimeData.for_chunk(
            past_seen_token_num=0, chunk_end_pos=1, embed_mask_cumsum=[0, 2]
        )
    ),
    "ProcessedRequest: expected at most 100 encoder tokens for item 1 (image, 1), "
    "got 128 encoder tokens "
    "- at $.multimodal_params.multimodal_data.item_metadata.encoder_token_lengths[1]": (
        lambda: check_admission(two_images_too_large(), budget=EncoderBudget(100))
    ),
    "ProcessedRequest: expected at most 64 output bytes for item 1 (image, 1), got 72 output bytes "
    "- at $.multimodal_params.multimodal_data.item_metadata.output_embedding_lengths[1]": (
        lambda: check_admission(
            two_images_too_large(), EncoderCapability(), EncoderBudget(None, 64, 8)
        )
    ),
}


@pytest.mark.parametrize("text", MESSAGES)
def test_one_sentence_shape_for_every_problem(text: str) -> None:
    with pytest.raises(ContractError) as caught:
        MESSAGES[text]()
    assert str(caught.value) == text


def test_of_many_problems_twenty_are_printed() -> None:
    with pytest.raises(ContractError) as caught:
        TokenIds([-1] * 20)
    assert len(str(caught.value).splitlines()) == 20
    with pytest.raises(ContractError) as caught:
        TokenIds([-1] * 25)
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[19].endswith("at $[19]")
    assert lines[20] == "and 5 more problems"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            AdmissionError("S", [Problem(("a",), "count", "3", "2")], "r"),
            "S: expected 3, got 2 - at $.a",
        ),
        (EncodeError("S", Problem((0,), "dtype", "x", "y")), "S: expected x, got y - at $[0]"),
        (
            DecodeError("expected a map, got nil", "syntax"),
            "decode: expected a map, got nil [syntax]",
        ),
        (DecodeError("bad", "range", 7), "decode: bad - at header byte 7 [range]"),
        (
            UnsupportedVersionError(3, 2),
            "decode: expected a message readable by version 2, got one that needs 3 [version]",
        ),
        (HandoffError("gone"), "gone"),
        (
            HandlerNotFoundError("smell", ["audio", "image"]),
            "expected a registered modality (audio, image), got 'smell'",
        ),
        (HandlerNotFoundError("x", []), "expected a registered modality (none is), got 'x'"),
        (AccumulationError("bad", "r1"), "request 'r1': bad"),
        (
            AccumulationError("bad", "r1", "audio", "codes"),
            "request 'r1', modality audio, key codes: bad",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_errors(error: Exception, text: str) -> None:
    assert str(error) == text


def test_a_traceback_ends_with_where_the_codes_are_explained() -> None:
    problems = [
        Problem(("a",), "order", "2", "1"),
        Problem(("b",), "count", "3 items", "2"),
        Problem(("c",), "order", "5", "4"),
    ]
    lines = "".join(traceback.format_exception_only(ContractValueError("S", problems)))
    assert lines.splitlines() == [
        "omniwire.contracts.errors.ContractValueError: S: expected 2, got 1 - at $.a",
        "S: expected 3 items, got 2 - at $.b",
        "S: expected 5, got 4 - at $.c",
        "See docs/reference/errors.md#problem-order, #problem-count",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ItemRef("image", 0), "ItemRef(modality='image', index=0)"),
        (MultimodalItemPartition((2, 1)), "MultimodalItemPartition(item_lengths=(2, 1), axis=0)"),
        (TokenIds([1, 2]), "TokenIds(2 ids)"),
        (TensorHandle("arena", torch.float16, (2, 3), b"x"), "TensorHandle(arena, f16[2, 3])"),
        (
            FrozenMapping({"a": torch.zeros(2), "b": ("x", [1]), "c": {"d": b"secret"}}),
            "FrozenMapping({'a': f32[2], 'b': ('x', (1,)), 'c': {'d': bytes of 6}})",
        ),
        (
            MultimodalParams(multimodal_data={"a": list(range(10))}, encoder_state=Foreign()),
            (
                "MultimodalParams(multimodal_input=None, multimodal_data={'a': (0, 1, 2, 3, 4, 5, "
                "6, 7, ... 10 in all)}, multimodal_runtime=None, encoder_state=tests.Foreign)"
            ),
        ),
        (
            ProcessedRequest("r1", [1], MultimodalParams()),
            (
                "ProcessedRequest(request_id='r1', prompt_token_ids=TokenIds(1 ids), "
                "multimodal_params=MultimodalParams(multimodal_input=None, multimodal_data={}, "
                "multimodal_runtime=None, encoder_state=None))"
            ),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_repr_shows_shapes_and_never_a_payload(value: object, text: str) -> None:
    module = Foreign.__module__.partition(".")[0]
    assert repr(value) == text.replace("tests.", f"{module}.")


def test_no_repr_prints_a_tensor(build) -> None:
    assert "tensor(" not in repr(build())


@pytest.mark.parametrize(
    "contract",
    [
        MultimodalItemPartition([1] * 10_000),
        MultimodalItemMetadata([("image", i) for i in range(10_000)], [1] * 10_000),
        MultimodalInput([HASH] * 10_000, [0] * 10_000, [1] * 10_000),
        TokenIds(range(10_000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_repr_of_ten_thousand_items_is_short(contract: object) -> None:
    assert len(repr(contract)) < 1000
