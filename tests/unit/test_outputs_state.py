"""`OmniRequestState`: one request's accumulated output, one modality at a time."""

import gc
import weakref

import numpy as np
import pytest
import torch

from omniwire import contracts as c
from omniwire.runtime import OmniRequestState, default_registry


def state(output_type="audio", **options):
    return OmniRequestState("r1", output_type, registry=default_registry(), **options)


def samples(*shape, start=0):
    count = torch.Size(shape).numel()
    return torch.arange(start, start + count, dtype=torch.float32).reshape(shape)


def fails(request, modality, payload):
    with pytest.raises(c.AccumulationError) as caught:
        request.add_output(modality, payload)
    assert caught.value.request_id == "r1"
    return caught.value


def test_audio_chunks_are_concatenated_along_the_last_dim():
    request = state()
    request.add_output("audio", samples(1, 500))
    request.add_output("audio", samples(1, 300, start=500))
    assert torch.equal(request.consolidate()["audio"], samples(1, 800))


def test_image_chunks_are_concatenated_along_the_first_dim_whatever_else_the_type_has():
    for output_type in ("image", "audio+image"):
        request = state(output_type)
        for _ in range(2):
            request.add_output("image", torch.ones(1, 3, 8, 8))
        values = request.consolidate()
        assert list(values) == ["image"]
        assert values["image"].shape == (2, 3, 8, 8)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_list_of_chunks_is_accumulated_in_order(kind):
    request = state()
    request.add_output("audio", kind([samples(3), samples(2, start=3)]))
    assert request.consolidate()["audio"].tolist() == [0, 1, 2, 3, 4]


def test_a_mapping_is_one_chunk_and_its_scalars():
    request = state()
    request.add_output("audio", {"waveform": samples(1, 4), "sample_rate": 24000, "codec": "pcm"})
    request.add_output("audio", {"wav": samples(1, 2), "sample_rate": torch.tensor(24000)})
    assert request.consolidate()["audio"].shape == (1, 6)


def test_stereo_then_mono_is_an_error_that_names_everything_and_loses_nothing():
    request = state("text+audio")
    request.add_output("audio", samples(2, 100))
    error = fails(request, "audio", samples(1, 50))
    assert (error.modality, error.key) == ("audio", "audio")
    for part in ("r1", "audio", "f32[2, 100]", "f32[1, 50]"):
        assert part in str(error)
    assert torch.equal(request.consolidate()["audio"], samples(2, 100))


@pytest.mark.parametrize(
    "second",
    [samples(100), samples(2, 2, 100), samples(2, 5).double(), samples(2, 5).to(torch.bfloat16)],
    ids=["lower rank", "higher rank", "f64", "bf16"],
)
def test_rank_and_dtype_are_fixed_by_the_first_chunk(second):
    request = state()
    request.add_output("audio", samples(2, 100))
    fails(request, "audio", second)
    assert request.consolidate()["audio"].shape == (2, 100)


def test_a_changed_sample_rate_is_an_error_and_keeps_its_chunk_out():
    """vllm-omni#6552: the rate is part of what a chunk says."""
    request = state()
    request.add_output("audio", {"audio": samples(1, 4), "sample_rate": 24000})
    error = fails(request, "audio", {"audio": samples(1, 4), "sample_rate": 16000})
    assert error.key == "audio.sample_rate"
    assert "24000" in str(error)
    assert "16000" in str(error)
    assert request.consolidate()["audio"].shape == (1, 4)


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        (24000, 24000.0, True),
        (24000, torch.tensor(24000.0), True),
        (float("nan"), float("nan"), True),
        (1, True, False),
        ("pcm", "opus", False),
        ("24000", 24000, False),
        (0.5, 0.25, False),
    ],
)
def test_scalars_agree_by_value(first, second, agree):
    request = state()
    request.add_output("audio", {"audio": samples(1), "value": first})
    if agree:
        request.add_output("audio", {"audio": samples(1), "value": second})
    else:
        fails(request, "audio", {"audio": samples(1), "value": second})


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ("a.wav", "audio"),
        (None, "audio"),
        (np.zeros(3), "audio"),
        ([torch.ones(1), 3], "audio[1]"),
        ({"audio": [torch.ones(1), "x"]}, "audio.audio[1]"),
        ({"audio": torch.ones(1), "extra": np.zeros(3)}, "audio.extra"),
        ({"audio": torch.ones(1), "extra": None}, "audio.extra"),
        ({"audio": torch.ones(1), "more": torch.ones(2)}, "audio.more"),
        ({"audio": torch.ones(1), "in": {"more": torch.ones(2)}}, "audio.in.more"),
        ({"model_outputs": torch.ones(1), "hidden": torch.ones(1)}, "audio.hidden"),
        (torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True), "audio"),
        (torch.zeros(2, device="meta"), "audio"),
    ],
)
def test_anything_but_the_accepted_payloads_is_refused_with_its_key(payload, key):
    """vllm-omni#472: one accepted set, everything else is refused."""
    request = state()
    assert fails(request, "audio", payload).key == key
    assert request.consolidate() == {}


def test_a_tensor_of_a_subclass_is_refused():
    fails(state(), "audio", torch.nn.Parameter(torch.ones(3)))


@pytest.mark.parametrize("modality", ["image", "smell", "text"])
def test_a_modality_that_the_request_does_not_have_is_refused(modality):
    error = fails(state("text+audio"), modality, torch.ones(1))
    assert "audio" in str(error)


def test_an_alias_is_as_good_as_the_modality():
    registry = default_registry()
    registry.register(registry.get("audio"), aliases=("speech",), replace=True)
    request = OmniRequestState("r1", "speech", registry=registry)
    request.add_output("speech", samples(1, 2))
    request.add_output("audio", samples(1, 3))
    assert request.consolidate()["audio"].shape == (1, 5)


class TestSpec:
    def test_a_rule_for_a_modality_takes_the_place_of_the_handler_s(self):
        request = state(spec=c.OutputSpec({"audio": c.Concat(0)}))
        request.add_output("audio", samples(1, 4))
        request.add_output("audio", samples(2, 4, start=4))
        assert torch.equal(request.consolidate()["audio"], samples(3, 4))

    @pytest.mark.parametrize(
        ("dim", "expected"),
        [
            (0, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
            (1, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
            (-1, [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]),
        ],
    )
    def test_stack_makes_a_new_dim(self, dim, expected):
        request = state("image", spec=c.OutputSpec({"image": c.Stack(dim)}))
        request.add_output("image", samples(2, 2))
        request.add_output("image", samples(2, 2, start=4))
        assert request.consolidate()["image"].tolist() == expected
        fails(request, "image", samples(2, 3))

    def test_stack_takes_tensors_without_dimensions(self):
        request = state("latent", spec=c.OutputSpec({"latent": c.Stack()}))
        for value in (1.0, 2.0):
            request.add_output("latent", torch.tensor(value))
        assert request.consolidate()["latent"].tolist() == [1, 2]

    def test_replace_keeps_the_last_whatever_its_shape(self):
        request = state("image", spec=c.OutputSpec({"image": c.Replace()}))
        request.add_output("image", torch.ones(1, 3, 8, 8))
        request.add_output("image", torch.ones(1, 3, 16, 16))
        assert request.consolidate()["image"].shape == (1, 3, 16, 16)
        assert request.retained_bytes == 1 * 3 * 16 * 16 * 4

    def test_replace_does_not_keep_the_last_of_several(self):
        request = state("image", spec=c.OutputSpec({"image": c.Replace()}))
        fails(request, "image", (torch.ones(1), torch.ones(1)))

    def test_append_yields_a_tuple_of_chunks_of_any_shape(self):
        request = state("image", spec=c.OutputSpec({"image": c.Append()}))
        request.add_output("image", samples(1, 2))
        request.add_output("image", (samples(3), samples(2).double()))
        shapes = [tuple(part.shape) for part in request.consolidate()["image"]]
        assert shapes == [(1, 2), (3,), (2,)]

    @pytest.mark.parametrize("rule", [c.Concat(2), c.Concat(-3), c.Stack(3), c.Stack(-4)])
    def test_a_dim_that_a_chunk_does_not_have_is_refused(self, rule):
        request = state(spec=c.OutputSpec({"audio": rule}))
        fails(request, "audio", samples(2, 2))

    def test_a_rule_for_text_is_refused(self):
        with pytest.raises(c.ContractValueError) as caught:
            state("text+audio", spec=c.OutputSpec({"text": c.Append()}))
        assert [p.path for p in caught.value.problems] == [("spec", "entries", "text")]


class TestMemory:
    def test_retained_bytes_are_those_of_the_chunks(self):
        request = state("audio+image")
        assert request.retained_bytes == 0
        request.add_output("audio", samples(1, 500))
        request.add_output("image", torch.zeros(1, 3, 8, 8, dtype=torch.bfloat16))
        assert request.retained_bytes == 500 * 4 + 192 * 2

    def test_a_row_of_a_large_tensor_costs_a_row(self):
        request = state("latent")
        storage = torch.zeros(1000, 64)
        request.add_output("latent", storage[3:5])
        assert request.retained_bytes == 2 * 64 * 4
        assert request.consolidate()["latent"].untyped_storage().nbytes() == 2 * 64 * 4

    def test_an_expanded_tensor_is_held_as_what_it_stands_for(self):
        request = state("latent")
        request.add_output("latent", torch.ones(1, 64).expand(3, 64))
        assert request.retained_bytes == 3 * 64 * 4
        assert torch.equal(request.consolidate()["latent"], torch.ones(3, 64))

    def test_memory_that_torch_did_not_allocate_is_copied_and_let_go(self):
        """An arena's slot, for one: whoever owns it may use it again at once."""
        request = state()
        memory = np.arange(4, dtype=np.float32)
        request.add_output("audio", torch.from_numpy(memory))
        alive = weakref.ref(memory)
        memory[:] = 9
        assert request.consolidate()["audio"].tolist() == [0, 1, 2, 3]
        del memory
        gc.collect()
        assert alive() is None

    def test_gradients_are_dropped(self):
        request = state()
        request.add_output("audio", torch.ones(1, 3, requires_grad=True) * 2)
        request.add_output("audio", torch.ones(1, 3, requires_grad=True))
        assert not request.consolidate()["audio"].requires_grad

    def test_a_consolidated_value_is_not_changed_by_later_chunks(self):
        request = state()
        seen = []
        for start in range(0, 40, 4):
            request.add_output("audio", samples(1, 4, start=start))
            seen.append(request.consolidate()["audio"])
        for step, value in enumerate(seen, start=1):
            assert torch.equal(value, samples(1, 4 * step))


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
    torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
    torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_accumulates_bit_by_bit(dtype):
    rows = torch.randint(0, 2, (6, 16), dtype=torch.uint8)
    chunks = [rows[0:1], rows[1:3], rows[3:6]]
    request = state("latent")
    for chunk in chunks:
        request.add_output("latent", chunk.clone().view(dtype))
        value = request.consolidate()["latent"]
    assert value.dtype is dtype
    assert torch.equal(value.contiguous().view(torch.uint8), rows)


@pytest.mark.parametrize(
    "make", [lambda t: t.t().contiguous().t(), lambda t: t.repeat(1, 2)[:, ::2]]
)
def test_chunks_need_not_be_contiguous(make):
    request = state("latent")
    rows = samples(4, 6)
    request.add_output("latent", make(rows[:2]))
    request.add_output("latent", make(rows[2:]))
    expected = torch.cat([make(rows[:2]), make(rows[2:])])
    assert torch.equal(request.consolidate()["latent"], expected)


def test_the_arguments_are_checked():
    with pytest.raises(c.ContractValueError):
        OmniRequestState("", "audio", registry=default_registry())
    with pytest.raises(c.HandlerNotFoundError):
        state("audio+smell")
    with pytest.raises(c.ContractTypeError):
        OmniRequestState("r1", "audio", registry=None)
    with pytest.raises(c.ContractTypeError):
        state(spec={"audio": c.Concat(0)})
