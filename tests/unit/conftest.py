"""What the unit tests share: how a refusal is read, and one contract of every type."""

from collections.abc import Callable

import pytest
import torch

from omniwire import contracts as c
from omniwire.contracts.errors import PROBLEM_CODES, Path

Refusal = tuple[type[c.ContractError], list[tuple[Path, str]]]


@pytest.fixture
def refusal() -> Callable[..., Refusal]:
    """Call what breaks a contract: the error's class, and path and code of each problem."""

    def refuse(function: Callable[..., object], *args: object, **kwargs: object) -> Refusal:
        with pytest.raises(c.ContractError) as caught:
            function(*args, **kwargs)
        problems = caught.value.problems
        assert {problem.code for problem in problems} <= PROBLEM_CODES.keys()
        return type(caught.value), [(problem.path, problem.code) for problem in problems]

    return refuse


def _item_metadata() -> c.MultimodalItemMetadata:
    return c.MultimodalItemMetadata(
        [("image", 0), ("audio", 0), ("image", 1)],
        [16, 24, 8],
        [4, 6, 2],
        {"image": {"pixel_values": c.MultimodalItemPartition((3, 2)), "grid": _batched()}},
    )


def _batched() -> c.MultimodalItemPartition:
    return c.MultimodalItemPartition()


def _multimodal_input() -> c.MultimodalInput:
    return c.MultimodalInput(
        [[1, -2, 3, -4, 5, -6, 7, -8], [0] * 8, [2**31 - 1] * 8],
        [1, 6, 13],
        [4, 6, 2],
        ["a", None, "b"],
        [0, 1, 3, 4],
        [1, 6, 9, 13],
        [4, 2, 4, 2],
    )


def _params() -> c.MultimodalParams:
    return c.MultimodalParams(
        multimodal_input=_multimodal_input(),
        multimodal_data={
            "item_metadata": _item_metadata(),
            "image": {
                "pixel_values": torch.arange(10.0).view(5, 2),
                "grid": torch.tensor([[1, 1, 3], [1, 1, 2]]),
            },
            "audio": {"features": torch.ones(1, 4, dtype=torch.bfloat16), "rates": [16000]},
        },
    )


def _local_handle() -> c.TensorHandle:
    return c.TensorHandle("local", torch.float32, (3, 2), torch.arange(6.0).view(3, 2))


def _arena_handle() -> c.TensorHandle:
    return c.TensorHandle("arena", torch.float32, (3, 2), b"slot")


def _one_of_each(handle: Callable[[], c.TensorHandle]) -> dict[str, Callable[[], object]]:
    """What builds a contract of each type, by the type's name, with every field set."""

    def output() -> c.OmniOutput:
        outputs = {"audio": torch.zeros(1, 480), "rate": 24000}
        return c.OmniOutput(torch.zeros(1, 8), outputs, {"codes": [handle()]})

    return {
        "FrozenMapping": lambda: c.FrozenMapping({"a": {"b": [1, torch.ones(2)]}, "c": None}),
        "ItemRef": lambda: c.ItemRef("image", 3),
        "MultimodalItemPartition": lambda: c.MultimodalItemPartition([2, 0, 1], 1),
        "MultimodalItemMetadata": _item_metadata,
        "MultimodalInput": _multimodal_input,
        "MultimodalRuntimeData": lambda: c.MultimodalRuntimeData(4, 9, 2, 3, 12),
        "MultimodalParams": _params,
        "TensorHandle": handle,
        "TokenIds": lambda: c.TokenIds([5, 0, 2**31 - 1]),
        "ProcessedRequest": lambda: c.ProcessedRequest("r1", range(16), _params()),
        "DisaggregatedParams": lambda: c.DisaggregatedParams([handle()], [[0] * 8], "decode", b"x"),
        "OmniOutput": output,
        "OutputChunk": lambda: c.OutputChunk(
            "r1", 2, "text+audio", [7], output(), c.ChunkKind.FINAL, "stop"
        ),
        "Concat": lambda: c.Concat(-1),
        "Stack": lambda: c.Stack(1),
        "Replace": c.Replace,
        "Append": c.Append,
        "OutputSpec": lambda: c.OutputSpec({"codes.audio": c.Concat(0), "image": c.Append()}),
        "RequestOutput": lambda: c.RequestOutput(
            "r1",
            [7, 8],
            {"audio": torch.zeros(1, 9), "image": (torch.ones(2), torch.zeros(3))},
            {"audio": {"sample_rate": 24000}},
            {"codes.audio": torch.zeros(2, dtype=torch.int64)},
            finished=True,
            finish_reason="stop",
            errors={"image": c.AccumulationError("no frames", "r1", "image")},
        ),
        "EncoderCapability": lambda: c.EncoderCapability(False, True, 64),
        "EncoderBudget": lambda: c.EncoderBudget(100, 4096, 64),
    }


ONE_OF_EACH = _one_of_each(_local_handle)
ONE_OF_EACH_TO_SEND = _one_of_each(_arena_handle)


@pytest.fixture
def examples() -> dict[str, Callable[[], object]]:
    """What builds a contract of each type, by the type's name."""
    return ONE_OF_EACH


@pytest.fixture(params=ONE_OF_EACH.values(), ids=ONE_OF_EACH.keys())
def build(request: pytest.FixtureRequest) -> Callable[[], object]:
    """Build a contract of some type, with every field set; each call builds an equal one anew."""
    return request.param


@pytest.fixture(params=ONE_OF_EACH_TO_SEND.values(), ids=ONE_OF_EACH_TO_SEND.keys())
def build_to_send(request: pytest.FixtureRequest) -> Callable[[], object]:
    """Like `build`, but every handle is one that another process can attach."""
    return request.param
