"""Contracts through a cluster of two Ray nodes on this machine.

`test_ray.py` runs this file in a process of its own, with folders of its own.
"""

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from hypothesis import given, settings
from hypothesis import strategies as hst
from ray.cluster_utils import Cluster
from ray.exceptions import RayActorError, RayTaskError
from ray.experimental import get_object_locations

import omniwire as ow
from omniwire.contracts.errors import WIRE_ERRORS, error_arguments
from omniwire.testing import assert_equal
from omniwire.testing import strategies as st

# Workers cannot import a test module: what they run travels by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 2**20
STORE_BYTES = 80 * MIB  # of each node; Ray takes no less than 75 MiB
PAYLOAD_BYTES = 32 * MIB
NUM_CHUNKS = 4
TIMEOUT_S = 60

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-with-ray.md"
PAGE_RESOURCES = {"processor": 1, "executor": 1}
HERE = {"here": 0.001}
ELSEWHERE = {"elsewhere": 0.001}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    """Two nodes, each with an object store of its own; tests and most actors are on the first."""
    head = {"num_cpus": 1, "include_dashboard": False, "resources": {"here": 1, **PAGE_RESOURCES}}
    started = Cluster(True, head_node_args={"object_store_memory": STORE_BYTES, **head})
    try:
        started.add_node(num_cpus=0, object_store_memory=STORE_BYTES, resources={"elsewhere": 1})
        ray.init(address=started.address, log_to_driver=False, logging_level="warning")
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@ray.remote(num_cpus=0)
class Executor:
    """Receives contracts, and says what became of them."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def echo(self, *values: object) -> tuple[object, ...]:
        return values

    def keep(self, value: object) -> None:
        self.kept.append(value)

    def drop(self) -> None:
        self.kept.clear()

    def mapping(self, params: ow.MultimodalParams) -> str:
        return mapping_of(payload_of(params))

    def growth(self, refs: list["ray.ObjectRef[ow.MultimodalParams]"]) -> int:
        """Bytes of private memory that reading and keeping an object takes."""
        before = private_bytes()
        self.kept.append(ray.get(refs[0]))
        return private_bytes() - before

    def write(self, params: ow.MultimodalParams) -> None:
        payload_of(params)[0] = -1.0

    def write_copy(self, params: ow.MultimodalParams) -> None:
        payload_of(params).clone()[0] = -1.0

    def write_array(self, params: ow.MultimodalParams) -> None:
        params.multimodal_data["image"]["array"][0] = -1.0

    def row(self, params: ow.MultimodalParams, index: int) -> ow.MultimodalParams:
        return params_with(payload_of(params).view(-1, 2**14)[index : index + 1])

    def fail(self, error: Exception) -> None:
        raise error

    def fail_by(self, other: Any, error: Exception) -> None:
        ray.get(other.fail.remote(error))

    def return_state(self) -> ow.MultimodalParams:
        return ow.MultimodalParams(encoder_state=object())

    def stream(self, request_id: str) -> Iterator[ow.OutputChunk]:
        for step in range(NUM_CHUNKS):
            yield audio_chunk(request_id, step)

    def block(self) -> None:
        time.sleep(3600)


@ray.remote(num_cpus=0)
def echo(*values: object) -> tuple[object, ...]:
    return values


@pytest.fixture(scope="module")
def executors() -> list[Any]:
    started = [Executor.options(resources=HERE).remote() for _ in range(2)]
    get([executor.echo.remote() for executor in started])
    return started


@pytest.fixture(scope="module")
def remote_executor() -> Any:
    return Executor.options(resources=ELSEWHERE).remote()


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=TIMEOUT_S)


def params_with(pixel_values: torch.Tensor, **fields: object) -> ow.MultimodalParams:
    data = {"pixel_values": pixel_values, **fields}
    return ow.MultimodalParams(multimodal_data={"image": data})


def payload_of(params: ow.MultimodalParams) -> torch.Tensor:
    return params.multimodal_data["image"]["pixel_values"]


def large_payload() -> torch.Tensor:
    return torch.arange(PAYLOAD_BYTES // 4, dtype=torch.float32)


def mapping_of(tensor: torch.Tensor) -> str:
    """The line of /proc/self/maps that holds a tensor's memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line
    raise AssertionError("the tensor's memory is not mapped")


def private_bytes() -> int:
    """Resident memory of this process that is neither shared nor a file's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def object_bytes(ref: "ray.ObjectRef[object]") -> int:
    return get_object_locations([ref])[ref]["object_size"]


def nodes_of(ref: "ray.ObjectRef[object]") -> int:
    return len(get_object_locations([ref])[ref]["node_ids"])


def stored_bytes() -> float:
    """What the objects in both stores take; Ray's figure follows with a delay."""
    return 2 * STORE_BYTES - ray.available_resources()["object_store_memory"]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_program_of_the_how_to() -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    start = f"ray.init(num_cpus=1, resources={json.dumps(PAGE_RESOURCES)})\n"
    assert [block.count(start) for block in blocks] == [1, 0]
    program = compile("\n".join(blocks).replace(start, ""), PAGE, "exec")
    namespace = {"__name__": "serve"}
    exec(program, namespace)
    namespace.clear()  # Ray keeps the classes, and they the names of the program


# ---- what arrives -----------------------------------------------------------------------------

SENT = ("arena", "cuda_ipc")  # handles that can leave a process
EVERY_CONTRACT = hst.fixed_dictionaries(
    {
        "accumulation_rule": st.accumulation_rules(),
        "disaggregated_params": st.disaggregated_params(handle_kinds=SENT),
        "encoder_budget": st.encoder_budgets(),
        "encoder_capability": st.encoder_capabilities(),
        "item_metadata": st.item_metadata(),
        "item_partition": st.item_partitions(),
        "item_ref": st.item_refs(),
        "multimodal_input": st.multimodal_inputs(),
        "multimodal_params": st.multimodal_params(handle_kinds=SENT),
        "omni_output": st.omni_outputs(handle_kinds=SENT),
        "output_chunk": st.output_chunks(handle_kinds=SENT),
        "output_spec": st.output_specs(),
        "payload": st.payloads(handle_kinds=SENT),
        "processed_request": st.processed_requests(handle_kinds=SENT),
        "request_output": st.request_outputs(handle_kinds=SENT),
        "runtime_data": st.runtime_data(),
        "tensor_handle": st.tensor_handles(handle_kinds=SENT),
        "token_ids": st.token_ids(),
    }
)


def check_arrived(arrived: dict[str, object], sent: dict[str, object]) -> None:
    assert arrived.keys() == sent.keys()
    for name, value in sent.items():
        assert type(arrived[name]) is type(value)
        assert_equal(arrived[name], value)


@settings(max_examples=10)
@given(contracts=EVERY_CONTRACT)
def test_every_contract(executors: list[Any], contracts: dict[str, object]) -> None:
    """In a dict through the store; as arguments and results of an actor; in a list in a task."""
    check_arrived(get(ray.put(contracts)), contracts)
    arrived = get(executors[0].echo.remote(*contracts.values()))
    check_arrived(dict(zip(contracts, arrived, strict=True)), contracts)
    (listed,) = get(echo.remote([{"nested": value} for value in contracts.values()]))
    nested = dict(zip(contracts, (value["nested"] for value in listed), strict=True))
    check_arrived(nested, contracts)


def every_dtype_and_layout() -> dict[str, torch.Tensor]:
    """Tensors that travel in the header, in the shared frame and in frames of their own."""
    dtypes = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
    strided = [d for d in dtypes if not str(d).startswith(("torch.q", "torch.bits", "torch.int1"))]
    found = {}
    for dtype in strided:
        with contextlib.suppress(RuntimeError):  # a data type that has a name and no kernels
            for num_bytes in (16, 1024, 2**17):
                memory = torch.arange(num_bytes // 2, dtype=torch.int16).view(torch.uint8)
                found[f"{dtype} {num_bytes}"] = memory.view(dtype)
    rows = torch.arange(2.0**16).view(2, 64, 16, 32)
    return {
        **found,
        "0-dim": torch.tensor(1.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 16),
        "transposed": rows[0, 0].t(),
        "transposed, large": rows.permute(3, 1, 0, 2),
        "channels last": rows.contiguous(memory_format=torch.channels_last),
        "expanded": torch.tensor([[1.0]]).expand(300, 300),
        "every other row": rows[:, ::2],
        "conjugate": torch.ones(9000, dtype=torch.complex64).mul(1j).conj(),
    }


def test_every_data_type_and_layout(executors: list[Any]) -> None:
    tensors = every_dtype_and_layout()
    names = " ".join(tensors)
    assert all(name in names for name in ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "uint64"))
    sent = ow.MultimodalParams(multimodal_data={"tensors": tensors})
    stored = get(ray.put(sent))
    (returned,) = get(executors[0].echo.remote(sent))
    for arrived in (stored, returned):
        assert_equal(arrived, sent)
        assert arrived == sent


def test_a_gradient_stays_behind() -> None:
    sent = params_with(torch.zeros(2**16, requires_grad=True) * 2)
    assert not payload_of(get(ray.put(sent))).requires_grad


# ---- memory -----------------------------------------------------------------------------------


def test_reading_copies_nothing(executors: list[Any]) -> None:
    ref = ray.put(params_with(large_payload()))
    first, second = get(ref), get(ref)
    assert payload_of(first).data_ptr() == payload_of(second).data_ptr()
    assert "plasma" in mapping_of(payload_of(first))
    small = ray.put(params_with(torch.zeros(2**16)))
    for executor in executors:
        assert "plasma" in get(executor.mapping.remote(ref))
        get(executor.growth.remote([small]))  # the first message makes what decoding needs
        assert get(executor.growth.remote([ref])) < PAYLOAD_BYTES // 4
        get(executor.drop.remote())


def test_a_result_is_read_where_the_task_put_it(executors: list[Any]) -> None:
    ref = executors[0].row.remote(params_with(large_payload().repeat(2)), 7)
    assert "plasma" not in mapping_of(payload_of(get(ref)))  # 64 KiB came with the reply
    (returned,) = get(executors[0].echo.remote(params_with(large_payload())))
    assert "plasma" in mapping_of(payload_of(returned))
    assert torch.equal(payload_of(returned), large_payload())


def test_a_write_is_seen_by_all_readers_on_the_node(executors: list[Any]) -> None:
    """ray#56740, #57639, #59084: tensors are read-only by contract, and torch cannot tell.

    Nothing crashes; what a write does is defined; comparing hashes detects it.
    """
    sent = params_with(large_payload(), array=np.zeros(2**16))
    ref = ray.put(sent)
    read = get(ref)
    get(executors[0].write_copy.remote(ref))
    assert ow.content_hash(get(ref)) == ow.content_hash(sent)
    get(executors[0].write.remote(ref))
    assert payload_of(read)[0] == payload_of(get(ref))[0] == -1.0
    assert payload_of(sent)[0] == 0.0
    assert ow.content_hash(get(ref)) != ow.content_hash(sent)
    with pytest.raises(ValueError, match="read-only"):
        get(executors[0].write_array.remote(ref))


def test_a_row_of_a_large_tensor_costs_a_row(executors: list[Any]) -> None:
    """pytorch#65604, #1995, #182105: not the storage that it is a view of."""
    gibibyte = torch.zeros(2**14, 2**14)
    assert object_bytes(ray.put(params_with(gibibyte[5:6]))) < 2**16 + 1024
    ref = executors[0].row.remote(ray.put(params_with(large_payload())), 7)
    assert payload_of(get(ref))[0, 0] == 7 * 2**14
    assert object_bytes(ref) < 2**16 + 1024


def test_a_view_keeps_the_memory_that_it_shows() -> None:
    ref = ray.put(params_with(large_payload()))
    view = payload_of(get(ref))[1000:2000]
    del ref
    for value in range(6):  # more than the store holds
        ray.put(params_with(torch.full((PAYLOAD_BYTES // 8,), float(value))))
    assert torch.equal(view, torch.arange(1000.0, 2000.0))


def test_the_store_is_as_empty_as_before(executors: list[Any]) -> None:
    wait_until(lambda: stored_bytes() == 0)
    ref = ray.put(params_with(large_payload()))
    get(executors[0].keep.remote(ref))
    wait_until(lambda: stored_bytes() > PAYLOAD_BYTES)
    get(executors[0].drop.remote())
    del ref
    wait_until(lambda: stored_bytes() == 0)


def test_another_node_gets_a_copy_and_its_processes_share_it(
    executors: list[Any], remote_executor: Any
) -> None:
    sent = params_with(large_payload())
    ref = ray.put(sent)
    get(executors[0].keep.remote(ref))
    assert nodes_of(ref) == 1
    assert "plasma" in get(remote_executor.mapping.remote(ref))
    wait_until(lambda: nodes_of(ref) == 2)
    assert get(remote_executor.growth.remote([ref])) < PAYLOAD_BYTES // 4
    get(remote_executor.write.remote(ref))
    assert get(ref) == sent
    (there,) = get(remote_executor.echo.remote(ref))
    assert payload_of(there)[0] == -1.0
    for executor in (executors[0], remote_executor):
        get(executor.drop.remote())


# ---- streams, errors, deaths ------------------------------------------------------------------


def audio_chunk(request_id: str, step: int) -> ow.OutputChunk:
    """The samples from 30,000 x step: 120 kB, more than Ray sends with a reply."""
    samples = torch.arange(30_000.0 * step, 30_000.0 * (step + 1)).view(1, -1)
    output = ow.OmniOutput(multimodal_outputs={"audio": samples, "sample_rate": 24000})
    finish_reason = "stop" if step == NUM_CHUNKS - 1 else None
    return ow.OutputChunk(
        request_id, step, "text+audio", [step], output, finish_reason=finish_reason
    )


def check_finished(outputs: list[ow.RequestOutput], request_ids: list[str]) -> None:
    assert [output.request_id for output in outputs] == request_ids
    for output in outputs:
        assert output.finish_reason == "stop"
        assert output.new_token_ids == (0, 1, 2, 3)
        audio = output.multimodal_outputs["audio"]
        assert torch.equal(audio, torch.arange(120_000.0).view(1, -1))


def test_streams_of_chunks(executors: list[Any]) -> None:
    """From two executors at once, as the steps come."""
    processor = ow.MultimodalOutputProcessor()
    for request_id in ("r0", "r1"):
        processor.add_request(request_id, "text+audio")
    streams = [
        executor.stream.remote(request_id)
        for executor, request_id in zip(executors, ("r0", "r1"), strict=True)
    ]
    outputs = []
    for refs in zip(*streams, strict=True):
        outputs += processor.process_outputs(get(list(refs)))
    assert processor.num_requests == 0
    check_finished(outputs, ["r0", "r1"])


def test_a_stream_in_asyncio(executors: list[Any]) -> None:
    processor = ow.MultimodalOutputProcessor()
    processor.add_request("r0", "text+audio")

    async def follow() -> list[ow.RequestOutput]:
        outputs: list[ow.RequestOutput] = []
        async for ref in executors[0].stream.remote("r0"):
            outputs += processor.process_outputs([await ref])
        return outputs

    check_finished(asyncio.run(follow()), ["r0"])


PROBLEMS = (ow.Problem(("image", 0), "count", "3 items", "2"),)
EVERY_ERROR = [
    ow.OmniwireError("failed"),
    ow.ContractError("Subject", PROBLEMS),
    ow.ContractTypeError("Subject", PROBLEMS),
    ow.ContractValueError("Subject", PROBLEMS),
    ow.AdmissionError("Subject", PROBLEMS, "r1"),
    ow.EncodeError("Subject", PROBLEMS[0]),
    ow.DecodeError("wrong", "syntax", 3),
    ow.UnsupportedVersionError(2, 1),
    ow.HandoffError("failed"),
    ow.PeerClosed("closed"),
    ow.PeerDied("died"),
    ow.HandoffTimeout("late"),
    ow.ArenaFull("full"),
    ow.HandlerNotFoundError("smell", ["image"]),
    ow.AccumulationError("wrong", "r1", "audio", "codes"),
]


def test_no_error_is_left_out() -> None:
    assert {type(error) for error in EVERY_ERROR} >= set(WIRE_ERRORS.values())


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_itself(executors: list[Any], error: ow.OmniwireError) -> None:
    """Caught by its own class, with its own attributes; `cause` is the error itself."""
    attributes = {name: value for name, value in vars(error).items() if name[0] != "_"}
    first, second = executors
    for ref in (first.fail.remote(error), first.fail_by.remote(second, error)):
        with pytest.raises(type(error)) as caught:
            get(ref)
        assert isinstance(caught.value, RayTaskError)
        assert {name: getattr(caught.value, name) for name in attributes} == attributes
        assert type(caught.value.cause) is type(error)
        assert error_arguments(caught.value.cause) == error_arguments(error)
        assert str(error) in str(caught.value)


def test_the_cause_of_an_error_goes_on_to_the_client(executors: list[Any]) -> None:
    """A subclass that Ray made for the occasion does not; its cause does."""
    error = ow.AccumulationError("wrong", "r1", "audio")
    with pytest.raises(ow.AccumulationError) as caught:
        get(executors[0].fail.remote(error))
    sent = ow.RequestOutput("r1", finished=True, errors={"audio": caught.value.cause})
    (arrived,) = get(executors[1].echo.remote(sent))
    assert_equal(arrived.errors["audio"], error)
    with pytest.raises(ow.EncodeError) as refused:
        ow.encode(ow.RequestOutput("r1", finished=True, errors={"audio": caught.value}))
    assert refused.value.path == ("errors", "audio")


def test_what_cannot_travel_is_refused_where_it_is_sent(executors: list[Any]) -> None:
    live = [ow.MultimodalParams(encoder_state=object())]
    for send in (ray.put, executors[0].echo.remote, echo.remote):
        with pytest.raises(ow.EncodeError) as refused:
            send(live)
        assert not isinstance(refused.value, RayTaskError)
        assert (refused.value.path, refused.value.code) == (("encoder_state",), "state")
    with pytest.raises(ow.EncodeError) as returned:
        get(executors[0].return_state.remote())
    assert (returned.value.path, returned.value.code) == (("encoder_state",), "state")


def test_one_executor_is_killed(executors: list[Any]) -> None:
    """Its calls fail, what it has returned stays, the other executors go on, nothing leaks."""
    victim = Executor.options(resources=HERE).remote()
    sent = params_with(torch.arange(2.0**18))
    request = ray.put(sent)
    returned = victim.echo.remote(request)
    get(victim.keep.remote(request))
    ray.wait([returned], timeout=TIMEOUT_S)
    pending = victim.block.remote()
    ray.kill(victim)
    for ref in (pending, victim.echo.remote(request)):
        with pytest.raises(RayActorError):
            get(ref)
    assert get(returned) == (sent,)
    assert get(executors[0].echo.remote(request)) == (sent,)
    del request, returned
    wait_until(lambda: stored_bytes() == 0)
