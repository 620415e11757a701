"""`MultimodalParams`: its fields, reserved keys, and what each method returns."""

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    FrozenMapping,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalParams,
    MultimodalRuntimeData,
    TensorHandle,
)

HASH = (0,) * 8
RUNTIME = MultimodalRuntimeData(0, 4, 0, 2, 2)
RECORD = MultimodalItemMetadata([("image", 0), ("image", 1)], None, [2, 3])
INPUT = MultimodalInput([HASH, HASH], [0, 2], [2, 3])
HANDLE = TensorHandle("arena", torch.float32, (2, 8), b"slot")
DATA = "multimodal_data"
EMBEDDING = "multimodal_embedding"


class TestFields:
    def test_nothing_at_all(self) -> None:
        params = MultimodalParams()
        assert params.multimodal_input is None
        assert params.multimodal_data == {}
        assert params.multimodal_runtime is None
        assert params.encoder_state is None
        assert params.item_metadata is None
        assert params.embeddings is None
        assert not params.has_content

    def test_the_payload_is_deep_frozen(self) -> None:
        """vllm-omni#5234, frozendict#31: what the caller keeps changes nothing here."""
        sizes = [[480, 640]]
        image = {"sizes": sizes}
        data = {"image": image}
        params = MultimodalParams(multimodal_data=data)
        sizes[0].append(3)
        sizes.append([1, 1])
        image["more"] = 1
        data["audio"] = {}
        assert params.multimodal_data == {"image": {"sizes": ((480, 640),)}}
        assert (
            type(params.multimodal_data) is type(params.multimodal_data["image"]) is FrozenMapping
        )

    def test_tensors_are_held_and_not_copied(self) -> None:
        tensor, array = torch.ones(2), np.ones(2)
        params = MultimodalParams(multimodal_data={"image": {"t": tensor, "a": [array]}})
        assert params.multimodal_data["image"]["t"] is tensor
        assert params.multimodal_data["image"]["a"][0] is array

    def test_no_defaults_are_shared(self) -> None:
        """transformers#48917"""
        assert MultimodalParams(multimodal_data={"a": 1}) != MultimodalParams()
        assert MultimodalParams().multimodal_data == {}

    @pytest.mark.parametrize("value", [5, {}, RECORD, MultimodalInput])
    def test_the_input_record(self, refusal, value: object) -> None:
        assert refusal(MultimodalParams, value) == (
            ContractTypeError,
            [(("multimodal_input",), "type")],
        )

    @pytest.mark.parametrize("value", [None, 5, [], "x", [("a", 1)], RECORD])
    def test_the_payload_is_a_mapping(self, refusal, value: object) -> None:
        assert refusal(MultimodalParams, multimodal_data=value) == (
            ContractTypeError,
            [((DATA,), "type")],
        )

    @pytest.mark.parametrize("value", [5, {}, (0, 4), MultimodalRuntimeData])
    def test_the_runtime_record(self, refusal, value: object) -> None:
        assert refusal(MultimodalParams, multimodal_runtime=value) == (
            ContractTypeError,
            [(("multimodal_runtime",), "type")],
        )

    def test_only_a_view_has_runtime_and_only_a_request_has_state(self, refusal) -> None:
        state = object()
        assert MultimodalParams(encoder_state=state).encoder_state is state
        assert MultimodalParams(multimodal_runtime=RUNTIME).multimodal_runtime is RUNTIME
        assert refusal(MultimodalParams, None, {}, RUNTIME, state) == (
            ContractValueError,
            [(("encoder_state",), "conflict")],
        )

    def test_every_problem_is_reported(self, refusal) -> None:
        data = {"item_metadata": {}, "image": {"x": object()}, EMBEDDING: 5, "audio": {"y": {1}}}
        assert refusal(MultimodalParams, 5, data, 5, 5) == (
            ContractTypeError,
            [
                (("multimodal_input",), "type"),
                ((DATA, "image", "x"), "type"),
                ((DATA, "audio", "y"), "type"),
                (("multimodal_runtime",), "type"),
                (("encoder_state",), "conflict"),
            ],
        )
        assert refusal(MultimodalParams, None, {"item_metadata": {}, EMBEDDING: 5}) == (
            ContractTypeError,
            [((DATA, "item_metadata"), "type"), ((DATA, EMBEDDING), "type")],
        )


class TestReservedKeys:
    @pytest.mark.parametrize("record", [None, {}, [RECORD], "x", INPUT])
    def test_the_item_metadata_is_the_single_record(self, refusal, record: object) -> None:
        assert refusal(MultimodalParams, multimodal_data={"item_metadata": record}) == (
            ContractTypeError,
            [((DATA, "item_metadata"), "type")],
        )
        assert MultimodalParams(multimodal_data={"item_metadata": RECORD}).item_metadata is RECORD

    @pytest.mark.parametrize("name", ["item_metadata", EMBEDDING, "mrope_config"])
    def test_no_modality_has_a_reserved_name(self, refusal, name: str) -> None:
        record = MultimodalItemMetadata([("image", 0), (name, 0), (name, 1)])
        path = (DATA, "item_metadata", "item_refs")
        assert refusal(MultimodalParams, multimodal_data={"item_metadata": record}) == (
            ContractValueError,
            [((*path, 1, "modality"), "conflict"), ((*path, 2, "modality"), "conflict")],
        )

    @pytest.mark.parametrize("value", [None, 5, "x", {}, {"a": torch.ones(2, 2)}, np.ones((2, 2))])
    def test_embeddings_that_are_no_tensor(self, refusal, value: object) -> None:
        assert refusal(MultimodalParams, multimodal_data={EMBEDDING: value}) == (
            ContractTypeError,
            [((DATA, EMBEDDING), "type")],
        )
        several = [*[torch.ones(2, 2)] * 99, value]
        assert refusal(MultimodalParams, multimodal_data={EMBEDDING: several}) == (
            ContractTypeError,
            [((DATA, EMBEDDING, 99), "type")],
        )

    def test_embeddings_of_no_item(self, refusal) -> None:
        assert refusal(MultimodalParams, multimodal_data={EMBEDDING: []}) == (
            ContractValueError,
            [((DATA, EMBEDDING), "count")],
        )


class TestHasContent:
    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            (MultimodalParams(), False),
            (MultimodalParams(encoder_state=object()), False),
            (MultimodalParams(multimodal_runtime=RUNTIME), False),
            (MultimodalParams(INPUT), True),
            (MultimodalParams(multimodal_data={"image": {}}), True),
        ],
    )
    def test_payload_or_input(self, params: MultimodalParams, expected: bool) -> None:
        assert params.has_content is expected


class TestFromEmbeddings:
    def test_one_tensor_or_handle_for_the_request(self) -> None:
        tensor = torch.ones(5, 8)
        for embeddings in (tensor, HANDLE):
            params = MultimodalParams.from_embeddings(embeddings)
            assert params.embeddings is embeddings
            assert params.multimodal_data[EMBEDDING] is embeddings
            assert params.has_content
            assert params.item_metadata is params.multimodal_input is None

    def test_one_per_item_with_what_is_known_of_the_items(self) -> None:
        tensor = torch.ones(3, 8)
        for several in ([HANDLE, tensor], (HANDLE, tensor)):
            params = MultimodalParams.from_embeddings(several, RECORD, INPUT)
            assert type(params.embeddings) is tuple
            assert params.embeddings[0] is HANDLE
            assert params.embeddings[1] is tensor
            assert params.item_metadata is RECORD
            assert params.multimodal_input is INPUT

    def test_wrong_arguments(self, refusal) -> None:
        assert refusal(MultimodalParams.from_embeddings, 5, RECORD, {}) == (
            ContractTypeError,
            [(("embeddings",), "type"), (("multimodal_input",), "type")],
        )
        assert refusal(MultimodalParams.from_embeddings, None, INPUT) == (
            ContractTypeError,
            [(("embeddings",), "type"), (("item_metadata",), "type")],
        )

    @pytest.mark.parametrize(
        ("embeddings", "kind", "path", "code"),
        [
            ([], ContractValueError, (), "count"),
            ([HANDLE, None], ContractTypeError, (1,), "type"),
            ("x", ContractTypeError, (), "type"),
            (torch.ones(2, 2).to_sparse(), ContractValueError, (), "layout"),
            ([torch.ones(2, 2, device="meta")], ContractValueError, (0,), "layout"),
        ],
    )
    def test_wrong_embeddings(self, refusal, embeddings, kind: type, path: tuple, code) -> None:
        assert refusal(MultimodalParams.from_embeddings, embeddings) == (
            kind,
            [((DATA, EMBEDDING, *path), code)],
        )


class TestViews:
    PARAMS = MultimodalParams(
        INPUT, {"image": {"pixels": torch.ones(5, 2)}, "item_metadata": RECORD}
    )

    def test_with_embeddings(self) -> None:
        request = self.PARAMS.with_encoder_state(object())
        tensor = torch.ones(5, 8)
        view = request.with_embeddings(tensor)
        assert view.embeddings is tensor
        assert view.multimodal_data["image"] is request.multimodal_data["image"]
        assert view.item_metadata is RECORD
        assert view.multimodal_input is INPUT
        assert view.encoder_state is None
        assert request.embeddings is None
        assert request.encoder_state is not None

    def test_with_embeddings_replaces_what_is_attached(self) -> None:
        first, second = torch.ones(5, 8), [torch.ones(2, 8), torch.ones(3, 8)]
        view = self.PARAMS.with_embeddings(first).with_embeddings(second)
        assert view.embeddings == tuple(second)
        assert type(view.embeddings) is tuple

    def test_with_embeddings_keeps_the_runtime(self) -> None:
        view = self.PARAMS.with_runtime(RUNTIME).with_embeddings(torch.ones(5, 8))
        assert view.multimodal_runtime is RUNTIME

    def test_with_runtime(self) -> None:
        request = self.PARAMS.with_encoder_state(object())
        view = request.with_runtime(RUNTIME)
        assert view.multimodal_runtime is RUNTIME
        assert view.multimodal_data is request.multimodal_data
        assert view.multimodal_input is INPUT
        assert view.encoder_state is None
        assert request.multimodal_runtime is None
        assert request.encoder_state is not None

    def test_a_view_equals_what_a_constructor_builds(self) -> None:
        view = self.PARAMS.with_runtime(RUNTIME).with_embeddings(torch.ones(5, 8))
        data = {**self.PARAMS.multimodal_data, EMBEDDING: torch.ones(5, 8)}
        assert view == MultimodalParams(INPUT, data, RUNTIME)

    def test_with_encoder_state_is_no_view(self, refusal) -> None:
        state = object()
        request = self.PARAMS.with_encoder_state(state)
        assert request.encoder_state is state
        assert request == self.PARAMS
        assert self.PARAMS.encoder_state is None
        assert refusal(self.PARAMS.with_runtime(RUNTIME).with_encoder_state, state) == (
            ContractValueError,
            [(("encoder_state",), "conflict")],
        )


class TestToDevice:
    """The device `meta` stands in for an accelerator: a tensor there has been moved."""

    @staticmethod
    def params() -> MultimodalParams:
        shared = torch.ones(2)
        return MultimodalParams(
            INPUT,
            {
                "image": {"pixels": shared, "list": [torch.ones(1), shared], "n": 3},
                "audio": {"features": np.ones(2), "handle": HANDLE, "deep": {"t": torch.ones(3)}},
                "item_metadata": RECORD,
                "none": None,
            },
        )

    @staticmethod
    def on_meta(value: object) -> list[str]:
        """Dotted paths of the moved tensors."""
        if isinstance(value, torch.Tensor):
            return [""] if value.is_meta else []
        if isinstance(value, FrozenMapping):
            pairs = value.items()
        else:
            pairs = enumerate(value) if type(value) is tuple else ()
        return [f".{key}{rest}" for key, item in pairs for rest in TestToDevice.on_meta(item)]

    def test_every_tensor(self) -> None:
        params = self.params()
        moved = params.to_device("meta")
        assert self.on_meta(moved.multimodal_data) == [
            ".image.pixels",
            ".image.list.0",
            ".image.list.1",
            ".audio.deep.t",
        ]
        assert self.on_meta(params.multimodal_data) == []
        assert moved.item_metadata is RECORD
        assert (
            moved.multimodal_data["audio"]["features"]
            is params.multimodal_data["audio"]["features"]
        )
        assert moved.multimodal_data["audio"]["handle"] is HANDLE
        assert moved.multimodal_input is INPUT

    def test_a_tensor_that_stands_twice_moves_once(self) -> None:
        image = self.params().to_device(torch.device("meta")).multimodal_data["image"]
        assert image["pixels"] is image["list"][1]
        paths = ["image.pixels", "image.list"]
        image = self.params().to_device("meta", paths).multimodal_data["image"]
        assert image["pixels"] is image["list"][1]

    def test_only_the_paths_given(self) -> None:
        params = self.params()
        moved = params.to_device("meta", paths=["image.pixels", "audio.deep"])
        assert self.on_meta(moved.multimodal_data) == [".image.pixels", ".audio.deep.t"]
        assert list(moved.multimodal_data) == list(params.multimodal_data)
        assert moved.multimodal_data["image"]["n"] == 3
        assert self.on_meta(params.to_device("meta", ()).multimodal_data) == []

    def test_state_and_runtime_stay(self) -> None:
        state = object()
        assert self.params().with_encoder_state(state).to_device("cpu").encoder_state is state
        moved = self.params().with_runtime(RUNTIME).to_device("cpu")
        assert moved.multimodal_runtime is RUNTIME
        assert moved == self.params().with_runtime(RUNTIME)

    def test_paths_that_lead_nowhere(self, refusal) -> None:
        paths = ["image.pixels", "image.nothing", "", "image.pixels.x", "none", "image.list.0", 5]
        assert refusal(self.params().to_device, "cpu", paths) == (
            ContractTypeError,
            [*[(("paths", i), "unknown") for i in range(1, 6)], (("paths", 6), "type")],
        )

    @pytest.mark.parametrize("device", ["nonsense", "cuda:x", ""])
    def test_an_unknown_device(self, refusal, device: str) -> None:
        assert refusal(MultimodalParams().to_device, device) == (
            ContractValueError,
            [(("device",), "device")],
        )

    def test_wrong_arguments(self, refusal) -> None:
        assert refusal(MultimodalParams().to_device, None, 5) == (
            ContractTypeError,
            [(("device",), "type"), (("paths",), "type")],
        )


class TestStripForGeneration:
    def test_only_the_mrope_deltas_are_kept(self) -> None:
        """TRT-LLM#13259: nothing of the payload lives on while the request decodes."""
        deltas = torch.tensor([[-3]])
        params = MultimodalParams(
            INPUT,
            {
                "image": {"pixels": torch.ones(2)},
                "mrope_config": {
                    "mrope_position_deltas": deltas,
                    "mrope_position_ids": torch.ones(3),
                },
                "item_metadata": RECORD,
                EMBEDDING: torch.ones(5, 8),
            },
            encoder_state=object(),
        )
        stripped = params.strip_for_generation()
        assert stripped == MultimodalParams(
            multimodal_data={"mrope_config": {"mrope_position_deltas": deltas}}
        )
        assert stripped.multimodal_data["mrope_config"]["mrope_position_deltas"] is deltas
        assert stripped.encoder_state is None
        assert stripped.multimodal_runtime is None
        assert params.item_metadata is RECORD

    @pytest.mark.parametrize(
        "data",
        [{}, {"image": {}}, {"mrope_config": {}}, {"mrope_config": {"x": 1}}, {"mrope_config": 5}],
    )
    def test_nothing_else_is_made_up(self, data: dict) -> None:
        stripped = MultimodalParams(multimodal_data=data, multimodal_runtime=RUNTIME)
        assert stripped.strip_for_generation() == MultimodalParams()
