"""`TensorHandle`: what it may hold, and what it resolves to."""

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    HandoffError,
    TensorHandle,
    TensorSource,
)
from omniwire.contracts.handles import resolved


class Source:
    """A payload as a channel attaches it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def resolve_tensor(self) -> torch.Tensor:
        return self.tensor


def handle(**fields: object) -> TensorHandle:
    given = {"kind": "arena", "dtype": torch.float32, "shape": (2, 3), "payload": b"slot", **fields}
    return TensorHandle(**given)


class TestFields:
    @pytest.mark.parametrize("kind", ["local", "arena", "cuda_ipc"])
    def test_three_kinds(self, kind: str) -> None:
        payload = torch.zeros(2, 3) if kind == "local" else b"opaque"
        assert handle(kind=kind, payload=payload).kind == kind

    @pytest.mark.parametrize("kind", ["", "Local", "shm", "cuda"])
    def test_an_unknown_kind(self, refusal, kind: str) -> None:
        assert refusal(handle, kind=kind) == (ContractValueError, [(("kind",), "unknown")])

    @pytest.mark.parametrize(
        "kind",
        [
            None,
            1,
            b"arena",
            np.array(["arena", "local"]),
            torch.zeros(2),
            type("S", (str,), {})("arena"),
        ],
    )
    def test_a_kind_that_is_no_str(self, refusal, kind: object) -> None:
        assert refusal(handle, kind=kind) == (ContractTypeError, [(("kind",), "type")])

    @pytest.mark.parametrize("dtype", [None, "float32", np.float32, np.dtype("f4"), float])
    def test_no_torch_dtype(self, refusal, dtype: object) -> None:
        assert refusal(handle, dtype=dtype) == (ContractTypeError, [(("dtype",), "type")])

    def test_a_list_or_size_is_stored_as_a_tuple(self) -> None:
        for shape in ([2, 3], torch.Size([2, 3])):
            assert handle(shape=shape).shape == (2, 3)
            assert type(handle(shape=shape).shape) is tuple
        assert handle(shape=()).shape == ()
        assert handle(shape=[0, 4]).shape == (0, 4)

    @pytest.mark.parametrize("shape", [None, 2, "23", range(2), np.array([2, 3])])
    def test_no_shape(self, refusal, shape: object) -> None:
        assert refusal(handle, shape=shape) == (ContractTypeError, [(("shape",), "type")])

    @pytest.mark.parametrize("dimension", [True, 1.0, "1", None, np.int64(1)])
    def test_a_dimension_that_is_no_int(self, refusal, dimension: object) -> None:
        assert refusal(handle, shape=(2, dimension)) == (
            ContractTypeError,
            [(("shape", 1), "type")],
        )

    def test_negative_dimensions(self, refusal) -> None:
        """dora#3208: two of them make a positive product."""
        assert refusal(handle, shape=(-2, 4, -8)) == (
            ContractValueError,
            [(("shape", 0), "range"), (("shape", 2), "range")],
        )

    @pytest.mark.parametrize("payload", [None, "slot", bytearray(4), torch.zeros(2, 3), object()])
    @pytest.mark.parametrize("kind", ["arena", "cuda_ipc"])
    def test_a_remote_payload_is_bytes_or_a_source(self, refusal, kind, payload) -> None:
        assert refusal(handle, kind=kind, payload=payload) == (
            ContractTypeError,
            [(("payload",), "type")],
        )

    def test_a_source_is_recognized_by_its_method(self) -> None:
        source = Source(torch.zeros(2, 3))
        assert isinstance(source, TensorSource)
        assert handle(payload=source).payload is source

    @pytest.mark.parametrize(
        "payload", [None, b"x", np.zeros((2, 3), np.float32), Source(torch.zeros(2, 3))]
    )
    def test_a_local_payload_is_the_tensor(self, refusal, payload: object) -> None:
        assert refusal(handle, kind="local", payload=payload) == (
            ContractTypeError,
            [(("payload",), "type")],
        )

    @pytest.mark.parametrize(
        ("payload", "kind", "code"),
        [
            (torch.zeros(3, 2), ContractValueError, "shape"),
            (torch.zeros(2, 3, dtype=torch.float64), ContractValueError, "shape"),
            (torch.zeros(2, 3).to_sparse(), ContractValueError, "layout"),
            (torch.zeros(2, 3, device="meta"), ContractValueError, "layout"),
            (torch.nn.Parameter(torch.zeros(2, 3)), ContractTypeError, "type"),
        ],
    )
    def test_a_local_tensor_is_plain_and_as_declared(self, refusal, payload, kind, code) -> None:
        assert refusal(handle, kind="local", payload=payload) == (kind, [(("payload",), code)])

    def test_all_fields_are_judged_and_the_payload_only_against_sound_ones(self, refusal) -> None:
        assert refusal(TensorHandle, "shm", "f4", (True, -1), None) == (
            ContractTypeError,
            [
                (("kind",), "unknown"),
                (("dtype",), "type"),
                (("shape", 0), "type"),
                (("shape", 1), "range"),
            ],
        )


class TestResolve:
    def test_a_local_handle_is_the_tensor_itself(self) -> None:
        tensor = torch.zeros(2, 3)
        assert handle(kind="local", payload=tensor).resolve() is tensor

    def test_a_source_is_asked(self) -> None:
        tensor = torch.zeros(2, 3)
        assert handle(payload=Source(tensor)).resolve() is tensor

    @pytest.mark.parametrize("tensor", [torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.int32)])
    def test_another_tensor_than_declared(self, tensor: torch.Tensor) -> None:
        with pytest.raises(HandoffError):
            handle(payload=Source(tensor)).resolve()

    def test_a_tensor_stands_for_itself(self) -> None:
        tensor = torch.zeros(2, 3)
        assert resolved(tensor) is tensor
        assert resolved(handle(kind="local", payload=tensor)) is tensor

    def test_an_unattached_handle(self) -> None:
        with pytest.raises(HandoffError):
            handle().resolve()
