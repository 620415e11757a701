"""The model's hooks, and whether its items are scheduled one by one."""

from collections.abc import Mapping, Sequence

import pytest
import torch

from omniwire.contracts import (
    AdmissionError,
    ContractError,
    ContractTypeError,
    ContractValueError,
    EncoderBudget,
    EncoderCapability,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    ProcessedRequest,
    check_admission,
)
from omniwire.runtime import (
    MultimodalEncoderMixin,
    mm_item_scheduling_enabled,
    select,
    validate_mm_encoder_scheduling_compatibility,
)

BATCHED = MultimodalItemPartition()
REFS = [("video", 0), ("image", 1), ("image", 0)]


class Model(MultimodalEncoderMixin):
    supports_mm_encoder_item_scheduling = True

    def encode_multimodal_inputs(self, params: list[MultimodalParams]) -> list[torch.Tensor]:
        return [one.multimodal_data["image"]["x"].reshape(-1, 1) for one in params]


class Declaring(Model):
    """A model that declares partitions itself, for payloads whose records have none."""

    def get_multimodal_item_partitions(
        self, params: MultimodalParams, modality: str
    ) -> Mapping[str, MultimodalItemPartition] | None:
        return {"image": {"x": MultimodalItemPartition((2, 1))}, "video": {}}.get(modality)


class Rebuilding(Model):
    """A model whose selection rebuilds a value beside the payload and a sibling field."""

    def build_multimodal_encoder_input(
        self, param: MultimodalParams, local_item_indices: Sequence[int], modality: str
    ) -> MultimodalParams:
        data = dict(param.multimodal_data)
        crops = [data[modality]["crops"][index] for index in local_item_indices]
        data[modality] = {"crops": crops, "num_crops": sum(map(len, crops))}
        data["num_selected"] = len(crops)
        return MultimodalParams(param.multimodal_input, data)


def params_of(
    payload: Mapping[str, object], partitions: Mapping[str, object] | None = None
) -> MultimodalParams:
    record = MultimodalItemMetadata(REFS, [3, 2, 1], [30, 20, 10], partitions)  # type: ignore[arg-type]
    given = MultimodalInput([[1] * 8, [2] * 8, [3] * 8], [0, 3, 5], [3, 2, 1])
    return MultimodalParams(given, {**payload, "item_metadata": record})


DECLARED = params_of(
    {"image": {"x": torch.arange(3)}, "video": {"x": torch.arange(4)}, "note": "kept"},
    {"image": {"x": MultimodalItemPartition((2, 1))}, "video": {}},
)


@pytest.mark.parametrize("indices", [[0], [1], [2], [2, 1], [1, 0, 1], [0, 1, 2]])
def test_by_default_the_hooks_select_as_select_does(indices: list[int]) -> None:
    assert Model().select_multimodal_items(DECLARED, indices) == select(DECLARED, indices)


def test_the_default_hook_takes_modality_local_indices() -> None:
    """TensorRT-LLM#15852: image 0 stands at prompt index 2, image 1 at prompt index 1."""
    view = Model().build_multimodal_encoder_input(DECLARED, [1, 0], "image")
    assert view == select(DECLARED, [1, 2])
    assert view.multimodal_data["image"]["x"].tolist() == [2, 0, 1]


def test_a_model_may_declare_what_the_record_leaves_open() -> None:
    open_params = params_of({"image": {"x": torch.arange(3)}, "video": {"x": torch.arange(4)}})
    assert Model().get_multimodal_item_partitions(open_params, "image") is None
    view = Declaring().select_multimodal_items(open_params, [0, 1])
    assert view.multimodal_data["image"]["x"].tolist() == [2]
    assert view.multimodal_data["video"]["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ContractValueError) as caught:
        Model().select_multimodal_items(open_params, [1])
    assert caught.value.problems[0].code == "missing"


def test_an_override_selects_the_payload_and_the_mixin_the_rest() -> None:
    params = params_of(
        {"image": {"crops": (("a", "b"), ("c",))}, "video": {"crops": ((),)}, "note": "kept"}
    )
    before = dict(params.multimodal_data)
    view = Rebuilding().select_multimodal_items(params, [1])
    record = MultimodalItemMetadata([("image", 0)], [2], [20])
    assert view == MultimodalParams(
        MultimodalInput([[2] * 8], [3], [2]),
        {
            "image": {"crops": (("c",),), "num_crops": 1},
            "note": "kept",
            "num_selected": 1,
            "item_metadata": record,
        },
    )
    assert params.multimodal_data == before
    mixed = Rebuilding().select_multimodal_items(params, [2, 0])
    assert mixed.multimodal_data["image"]["crops"] == (("a", "b"),)
    assert mixed.multimodal_data["video"]["crops"] == ((),)


def test_a_hook_may_leave_the_payload_out() -> None:
    class Dropping(Model):
        def build_multimodal_encoder_input(
            self, param: MultimodalParams, local_item_indices: Sequence[int], modality: str
        ) -> MultimodalParams:
            return MultimodalParams()

    view = Dropping().select_multimodal_items(DECLARED, [1])
    assert set(view.multimodal_data) == {"note", "item_metadata"}


def test_a_selection_leaves_the_request_its_state() -> None:
    params = DECLARED.with_encoder_state("live")
    assert Model().select_multimodal_items(params, [1]).encoder_state is None
    assert params.encoder_state == "live"


@pytest.mark.parametrize(
    ("local", "modality", "code", "path"),
    [
        ([0], "audio", "unknown", ("modality",)),
        ([2], "image", "index", ("local_item_indices", 0)),
        ([], "image", "index", ("local_item_indices",)),
    ],
)
def test_bad_items(local: list[int], modality: str, code: str, path: tuple[str | int]) -> None:
    with pytest.raises(ContractValueError) as caught:
        Model().build_multimodal_encoder_input(DECLARED, local, modality)
    assert [(p.code, p.path) for p in caught.value.problems] == [(code, path)]


def test_embeddings_pass_through_hooks_that_are_not_overridden() -> None:
    embeddings = [torch.zeros(1, 1)]
    assert Model().after_full_multimodal_embeddings(embeddings, [DECLARED]) is embeddings
    assert Model().after_active_multimodal_embeddings(embeddings, [DECLARED]) is embeddings


def test_the_base_has_no_encoders() -> None:
    with pytest.raises(NotImplementedError):
        MultimodalEncoderMixin().encode_multimodal_inputs([])


def test_the_mixin_stands_beside_a_module() -> None:
    class Module(MultimodalEncoderMixin, torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

    assert len(list(Module().parameters())) == len(("weight", "bias"))


def test_items_are_scheduled_if_the_model_can_and_the_engine_wants() -> None:
    assert mm_item_scheduling_enabled(Model())
    assert not mm_item_scheduling_enabled(Model(), disable_mm_encoder=True)
    assert not mm_item_scheduling_enabled(Model(), policy="request")
    assert not mm_item_scheduling_enabled(MultimodalEncoderMixin())
    assert not mm_item_scheduling_enabled(object())


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        ({"policy": "sometimes"}, ContractValueError, "unknown"),
        ({"policy": None}, ContractTypeError, "type"),
        ({"disable_mm_encoder": 1}, ContractTypeError, "type"),
    ],
)
def test_unknown_switches(
    arguments: dict[str, object], kind: type[ContractError], code: str
) -> None:
    for check in (
        lambda: mm_item_scheduling_enabled(Model(), **arguments),  # type: ignore[arg-type]  # what is tested
        lambda: validate_mm_encoder_scheduling_compatibility(
            Model(),
            budget=EncoderBudget(),
            **arguments,  # type: ignore[arg-type]  # what is tested
        ),
    ):
        with pytest.raises(kind) as caught:
            check()
        problems = caught.value.problems
        assert [(p.path, p.code) for p in problems] == [(tuple(arguments), code)]


def test_a_claim_without_an_encoder_fails_at_start_up() -> None:
    class Claiming(MultimodalEncoderMixin):
        supports_mm_encoder_item_scheduling = True

    budget = EncoderBudget(max_encoder_tokens=8)
    with pytest.raises(ContractValueError) as caught:
        validate_mm_encoder_scheduling_compatibility(Claiming(), budget=budget)
    problems = caught.value.problems
    assert [(p.path, p.code) for p in problems] == [
        (("model", "encode_multimodal_inputs"), "missing")
    ]
    validate_mm_encoder_scheduling_compatibility(Model(), budget=budget)
    validate_mm_encoder_scheduling_compatibility(Claiming(), budget=budget, policy="request")
    validate_mm_encoder_scheduling_compatibility(Claiming(), budget=budget, disable_mm_encoder=True)


def test_a_capability_is_a_bool_and_a_budget_a_budget() -> None:
    class Odd(Model):
        supports_mm_encoder_item_scheduling = 1  # type: ignore[assignment]  # what is tested

    with pytest.raises(ContractTypeError) as caught:
        validate_mm_encoder_scheduling_compatibility(Odd(), budget=8)  # type: ignore[arg-type]  # what is tested
    assert [p.path for p in caught.value.problems] == [
        ("budget",),
        ("model", "supports_mm_encoder_item_scheduling"),
    ]


def test_under_item_scheduling_a_request_is_refused_and_never_encoded_whole() -> None:
    """vllm#31219, #38305, #50957: one request fails, by its item; the other goes on."""
    capability = EncoderCapability(item_scheduling=mm_item_scheduling_enabled(Model()))
    budget = EncoderBudget(max_encoder_tokens=2)
    prompt = range(8)
    unknown = MultimodalItemMetadata([("image", 0)], None, [4], {"image": {}})
    data = {"image": {}, "item_metadata": unknown}
    cases = [
        (DECLARED, ("encoder_token_lengths", 0), "budget", ("3", "2")),
        (MultimodalParams(multimodal_data=data), ("encoder_token_lengths",), "missing", ()),
    ]
    for number, (params, path, code, numbers) in enumerate(cases):
        request = ProcessedRequest(f"r{number}", prompt, params)
        with pytest.raises(AdmissionError) as caught:
            check_admission(request, capability, budget)
        assert caught.value.request_id == f"r{number}"
        (problem,) = (p for p in caught.value.problems if "encoder_token_lengths" in p.path)
        assert (problem.path[-len(path) :], problem.code) == (path, code)
        assert all(text in str(caught.value) for text in numbers)
        check_admission(request, EncoderCapability(item_scheduling=False), budget)
    small = select(DECLARED, [1])
    check_admission(
        ProcessedRequest("r", prompt, MultimodalParams(None, small.multimodal_data)),
        capability,
        budget,
    )


@pytest.mark.parametrize("can", [True, False])
@pytest.mark.parametrize("disable_mm_encoder", [True, False])
@pytest.mark.parametrize("policy", ["item", "request"])
def test_every_combination_of_switches(can: bool, disable_mm_encoder: bool, policy: str) -> None:
    class Claiming(MultimodalEncoderMixin):
        """Claims what it does not implement; that matters only where it is used."""

        supports_mm_encoder_item_scheduling = can

    is_used = can and not disable_mm_encoder and policy == "item"
    for model in (Claiming(), Claiming):
        enabled = mm_item_scheduling_enabled(
            model, disable_mm_encoder=disable_mm_encoder, policy=policy
        )
        assert enabled is is_used
    try:
        validate_mm_encoder_scheduling_compatibility(
            Claiming(),
            budget=EncoderBudget(),
            policy=policy,
            disable_mm_encoder=disable_mm_encoder,
        )
    except ContractValueError:
        assert is_used
    else:
        assert not is_used
