"""Tensors and arrays on the wire: every data type and layout, and where the bytes go."""

import gc
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from omniwire.contracts import FrozenMapping, MultimodalParams
from omniwire.serialization import decode, dumps, encode, loads, save
from omniwire.serialization.dtypes import NUMPY_CODES, TORCH_CODES

KIB = 1024

DTYPES = sorted(
    {
        value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and not name.startswith(("qint", "quint"))
    },
    key=str,
)
ITEMSIZES = {
    "complex128": 16, "complex64": 8, "complex32": 4, "float64": 8, "float32": 4, "float16": 2,
    "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "uint64": 8, "uint32": 4, "uint16": 2,
    "bits16": 2,
}  # fmt: skip

NAMES_BY_CODE = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    *("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"),
    *("int1", "int2", "int3", "int4", "int5", "int6", "int7"),
]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def arrive(value: object, **options: bool) -> object:
    return decode(encode(FrozenMapping({"value": value})), **options)["value"]


def frames_of(*values: object) -> list[bytes | memoryview]:
    return encode(FrozenMapping({"values": values}))


def stored(dtype: torch.dtype, count: int, seed: int = 1) -> tuple[torch.Tensor, np.ndarray]:
    """A 1-D tensor over arbitrary bytes, and those bytes by element."""
    itemsize = ITEMSIZES.get(str(dtype)[6:], 1)
    rng = np.random.default_rng(seed)
    top = 2 if dtype is torch.bool else 256
    content = rng.integers(0, top, (count, itemsize), dtype=np.uint8)
    return torch.from_numpy(content.copy().reshape(-1)).view(dtype), content


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def address(frame: bytes | memoryview) -> int:
    return np.frombuffer(frame, np.uint8).ctypes.data


class TestDataTypes:
    def test_the_table_has_every_strided_dtype_of_this_torch(self) -> None:
        """huggingface_hub#4901: a table that can lag torch is found out here."""
        assert set(DTYPES) == set(TORCH_CODES)

    def test_codes_never_change(self) -> None:
        assert {str(dtype)[6:]: code for dtype, code in TORCH_CODES.items()} == {
            name: code for code, name in enumerate(NAMES_BY_CODE, start=1)
        }

    def test_numpy_has_the_codes_of_torch(self) -> None:
        for dtype, code in NUMPY_CODES.items():
            assert TORCH_CODES[torch.from_numpy(np.zeros(1, dtype)).dtype] == code
        assert {dtype.str for dtype in NUMPY_CODES} == {
            "|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8",
            "<c8", "<c16",
        }  # fmt: skip

    @every_dtype
    @pytest.mark.parametrize("count", [1, 6, 600, 70_000])
    def test_every_bit_arrives(self, dtype: torch.dtype, count: int) -> None:
        """vllm#16860, GPTQModel#2863, safetensors#450: also what numpy has no type for."""
        tensor, content = stored(dtype, count)
        for copy in (False, True):
            arrived = arrive(tensor, copy=copy)
            assert arrived.dtype is dtype
            assert arrived.shape == (count,)
            assert bytes_of(arrived) == content.tobytes()

    @every_dtype
    def test_without_elements(self, dtype: torch.dtype) -> None:
        """pytorch#164198, verl#7534"""
        for shape in ((0,), (0, 16), (3, 0, 2)):
            tensor = torch.empty(0, dtype=torch.uint8).view(dtype).view(shape)
            arrived = arrive(tensor)
            assert (arrived.dtype, arrived.shape) == (dtype, shape)
            assert len(frames_of(tensor)) == 1

    @every_dtype
    def test_without_dimensions(self, dtype: torch.dtype) -> None:
        """vllm#52235: `.view(uint8)` and `.view(*[])` both fail."""
        tensor, content = stored(dtype, 3)
        arrived = arrive(tensor[1])
        assert (arrived.dtype, arrived.shape) == (dtype, ())
        assert bytes_of(arrived) == content[1].tobytes()

    @every_dtype
    def test_layouts(self, dtype: torch.dtype) -> None:
        """vllm#16492: the order of the values, never the order of the storage."""
        flat, content = stored(dtype, 4 * 6)
        tensor = flat.view(4, 6)
        rows = content.reshape(4, 6, -1)
        odd = flat[3:4].as_strided((1, 1), (7, 5))
        for view, expected in (
            (tensor.t(), rows.swapaxes(0, 1)),
            (tensor[1::2, 2:5], rows[1::2, 2:5]),
            (tensor[:, 3], rows[:, 3]),
            (tensor[:1].expand(5, 6), np.broadcast_to(rows[:1], (5, 6, rows.shape[2]))),
            (
                flat.view(1, 2, 3, 4).permute(0, 3, 1, 2),
                content.reshape(1, 2, 3, 4, -1).transpose(0, 3, 1, 2, 4),
            ),
            (odd, content[3:4]),
        ):
            arrived = arrive(view)
            assert arrived.shape == view.shape
            assert arrived.is_contiguous()
            assert bytes_of(arrived) == expected.tobytes()

    @every_dtype
    @pytest.mark.parametrize("count", [100, 20_000])
    def test_large_layouts(self, dtype: torch.dtype, count: int) -> None:
        """The same through the shared frame and through frames of their own."""
        flat, content = stored(dtype, 2 * count)
        view = flat.view(2, count).t()
        expected = content.reshape(2, count, -1).swapaxes(0, 1)
        assert bytes_of(arrive(view)) == expected.tobytes()

    def test_channels_last(self) -> None:
        image = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5)
        stored_last = image.to(memory_format=torch.channels_last)
        assert stored_last.stride() != image.stride()
        arrived = arrive(stored_last)
        assert arrived.flatten().tolist() == list(range(120))

    @pytest.mark.parametrize("half", ["e", "f", "d"])
    def test_conjugate_and_negative_views(self, half: str) -> None:
        """Their bits say what the stored numbers are not."""
        dtype = {"e": torch.complex32, "f": torch.complex64, "d": torch.complex128}[half]
        numbers = [1.0, 2.0, -3.0, 4.0, 0.5, -0.0, float("inf"), 6.0]
        content = bytearray(struct.pack(f"<8{half}", *numbers))
        tensor = torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(2, 2)
        conjugate = tensor.conj()
        assert conjugate.is_conj()
        expected = struct.pack(f"<8{half}", 1.0, -2.0, -3.0, -4.0, 0.5, 0.0, float("inf"), -6.0)
        assert bytes_of(arrive(conjugate)) == expected
        transposed = struct.pack(f"<8{half}", 1.0, -2.0, 0.5, 0.0, -3.0, -4.0, float("inf"), -6.0)
        assert bytes_of(arrive(conjugate.t())) == transposed
        assert not arrive(conjugate).is_conj()
        negative = conjugate.imag
        assert negative.is_neg()
        assert bytes_of(arrive(negative)) == struct.pack(f"<4{half}", -2.0, -4.0, 0.0, -6.0)

    def test_special_numbers_keep_their_bits(self) -> None:
        patterns = ["7fc00001", "ffc12345", "7f800001", "80000000", "7f800000", "ff800000"]
        content = b"".join(bytes.fromhex(pattern)[::-1] for pattern in patterns)
        tensor = torch.frombuffer(bytearray(content), dtype=torch.float32)
        assert bytes_of(arrive(tensor)) == content
        array = np.frombuffer(content, "<f4")
        assert arrive(array).tobytes() == content

    def test_gradients_stay_behind(self) -> None:
        """pytorch#36457"""
        leaf = torch.ones(2, requires_grad=True)
        large = torch.ones(30_000, requires_grad=True) * 2
        for tensor in (leaf, leaf * 2, large):
            arrived = arrive(tensor)
            assert arrived.requires_grad is False
            assert arrived.grad_fn is None
        assert arrive(leaf * 2).tolist() == [2.0, 2.0]


class TestArrays:
    @pytest.mark.parametrize("dtype", list(NUMPY_CODES), ids=str)
    @pytest.mark.parametrize("count", [0, 1, 6, 600, 70_000])
    def test_arrive_as_arrays(self, dtype: "np.dtype[np.generic]", count: int) -> None:
        rng = np.random.default_rng(3)
        top = 2 if dtype.kind == "b" else 256
        content = rng.integers(0, top, count * dtype.itemsize, dtype=np.uint8).tobytes()
        arrived = arrive(np.frombuffer(content, dtype))
        assert type(arrived) is np.ndarray
        assert arrived.dtype == dtype
        assert arrived.tobytes() == content

    def test_layouts(self) -> None:
        array = np.arange(24, dtype=np.int16).reshape(4, 6)
        for view in (
            array.T,
            array[::-1],
            array[1::2, 2:5],
            np.asfortranarray(array),
            array[2, 3, ...],
        ):
            arrived = arrive(view)
            assert arrived.shape == view.shape
            assert arrived.tolist() == view.tolist()

    def test_without_dimensions(self) -> None:
        arrived = arrive(np.array(2.5))
        assert type(arrived) is np.ndarray
        assert (arrived.shape, arrived.item()) == ((), 2.5)

    @pytest.mark.parametrize("count", [4, 200, 20_000])
    def test_are_read_only_unless_copied(self, count: int) -> None:
        array = np.zeros(count, np.int64)
        frames = [bytearray(frame) for frame in frames_of(array)]
        arrived = decode(frames)["values"][0]
        with pytest.raises(ValueError, match="read-only"):
            arrived[0] = 1
        private = decode(frames, copy=True)["values"][0]
        private[0] = 1
        assert decode(frames)["values"][0].tolist() == [0] * count

    def test_a_tensor_and_an_array_of_the_same_memory_travel_once(self) -> None:
        array = np.arange(10_000, dtype=np.float64)
        frames = frames_of(array, torch.from_numpy(array))
        assert [len(frame) for frame in frames[1:]] == [80_000]
        first, second = decode(frames)["values"]
        assert (first == array).all()
        assert second.tolist() == array.tolist()


class TestPlaces:
    def test_bf16_is_two_bytes_an_element(self) -> None:
        """vllm-omni#5739, #6627: 24 bytes of payload, not 48."""
        tensor = torch.arange(12).to(torch.bfloat16).view(3, 4)
        plain = len(frames_of(torch.zeros(3, 0, dtype=torch.bfloat16))[0])
        (header,) = frames_of(tensor)
        assert bytes_of(tensor) in header
        assert len(header) - plain == 24

    def test_512_slices_cost_their_rows(self) -> None:
        """sglang#33388: 2 KiB each, not the parent's storage."""
        base = torch.arange(4096 * 64, dtype=torch.float32).view(4096, 64)
        slices = [base[8 * i : 8 * i + 8] for i in range(512)]
        header, shared = frames_of(*slices)
        assert len(shared) == 512 * 2048
        assert len(header) < 512 * 64
        arrived = decode([header, shared])["values"]
        assert all(torch.equal(one, other) for one, other in zip(arrived, slices, strict=True))

    def test_a_row_of_a_large_tensor_costs_a_row(self) -> None:
        """pytorch#65604"""
        row = torch.zeros(1024, 1024)[:1]
        assert len(dumps(FrozenMapping({"row": row}))) < 4096 + 1024

    @pytest.mark.parametrize(
        ("nbytes", "sizes"),
        [(0, []), (1, []), (512, []), (513, [513]), (65_535, [65_535]), (65_536, [65_536])],
    )
    def test_by_size(self, nbytes: int, sizes: list[int]) -> None:
        frames = frames_of(torch.zeros(nbytes, dtype=torch.uint8))
        assert [len(frame) for frame in frames[1:]] == sizes

    def test_a_large_tensor_is_not_copied(self) -> None:
        tensor = torch.arange(64 * KIB, dtype=torch.uint8)
        frames = frames_of(tensor)
        assert address(frames[1]) == tensor.data_ptr()
        assert decode(frames)["values"][0].data_ptr() == tensor.data_ptr()

    def test_a_frame_keeps_its_memory(self) -> None:
        frame = frames_of(torch.full((64 * KIB,), 7, dtype=torch.uint8))[1]
        gc.collect()
        torch.zeros(64 * KIB, dtype=torch.uint8)
        assert bytes(frame) == bytes([7]) * 64 * KIB

    def test_small_tensors_share_one_frame_at_aligned_offsets(self) -> None:
        tensors = [torch.full((600 + i,), i, dtype=torch.uint8) for i in range(150)]
        _, shared = frames_of(*tensors)
        starts = [0]
        for tensor in tensors:
            starts.append((starts[-1] + len(tensor) + 63) // 64 * 64)
        assert len(shared) == starts[-2] + len(tensors[-1])
        for tensor, start in zip(tensors, starts, strict=False):
            assert bytes(shared[start : start + len(tensor)]) == bytes_of(tensor)
        gap = shared[starts[0] + 600 : starts[1]]
        assert bytes(gap) == bytes(40)

    def test_frames_are_flat_read_only_bytes(self) -> None:
        header, *frames = frames_of(torch.zeros(300), torch.zeros(4, 128, 128))
        assert type(header) is bytes
        assert len(frames) == 2
        for frame in frames:
            assert type(frame) is memoryview
            assert (frame.ndim, frame.format, frame.itemsize) == (1, "B", 1)
            assert frame.readonly

    def test_the_same_tensor_travels_once(self) -> None:
        large, small = torch.ones(128, 256), torch.ones(300)
        frames = frames_of(large, small, large, small, large.view(256, 128), large.detach())
        assert sorted(len(frame) for frame in frames[1:]) == [1200, 128 * 256 * 4]
        arrived = decode(frames)["values"]
        assert arrived[0].data_ptr() == arrived[2].data_ptr() == arrived[4].data_ptr()
        assert arrived[1].data_ptr() == arrived[3].data_ptr()
        assert arrived[4].shape == (256, 128)

    def test_the_same_view_travels_once(self) -> None:
        base = torch.arange(128.0 * 256).view(128, 256)
        frames = frames_of(base.t(), base.t(), base.t()[1:])
        assert [len(frame) for frame in frames[1:]] == [128 * 256 * 4, 128 * 255 * 4]
        assert torch.equal(decode(frames)["values"][1], base.t())

    def test_views_that_differ_in_their_bits_alone_travel_apart(self) -> None:
        numbers = torch.tensor([[1 + 2j, 3 - 4j]] * 200).t()
        plain, conjugate = decode(frames_of(numbers, numbers.conj()))["values"]
        assert plain[:, 0].tolist() == [1 + 2j, 3 - 4j]
        assert conjugate[:, 0].tolist() == [1 - 2j, 3 + 4j]
        negative = numbers.conj().imag
        first, second = decode(frames_of(numbers.imag, negative))["values"]
        assert first[:, 0].tolist() == [2.0, -4.0]
        assert second[:, 0].tolist() == [-2.0, 4.0]

    def test_overlapping_tensors_travel_apart(self) -> None:
        base = torch.arange(1000.0)
        frames = frames_of(base[:600], base[400:], base)
        assert len(frames) == 2
        first, second, third = decode(frames)["values"]
        assert torch.equal(first, base[:600])
        assert torch.equal(second, base[400:])
        assert torch.equal(third, base)

    def test_copies_made_on_the_way_are_not_mistaken_for_each_other(self) -> None:
        base = torch.arange(2000.0).view(2, 1000)
        views = [base.t()[i : i + 300] for i in range(0, 700, 100)]
        arrived = decode(frames_of(*views))["values"]
        assert all(torch.equal(one, other) for one, other in zip(arrived, views, strict=True))

    def test_one_buffer_is_64_byte_aligned(self) -> None:
        tensor = torch.arange(700, dtype=torch.int16)
        blob = dumps(FrozenMapping({"a": tensor, "b": torch.ones(5, 4096)}))
        assert blob.index(bytes_of(tensor)) % 64 == 0
        assert blob.index(bytes_of(torch.ones(5, 4096))) % 64 == 0


class TestMemory:
    @pytest.mark.parametrize("shape", [(300,), (64, 512)])
    def test_decoded_tensors_alias_the_buffer(self, shape: tuple[int, ...]) -> None:
        blob = bytearray(dumps(FrozenMapping({"t": torch.zeros(shape)})))
        arrived = loads(blob)["t"]
        start = address(blob)
        assert start <= arrived.data_ptr() < start + len(blob)
        arrived[0] = 1
        assert blob != bytearray(dumps(FrozenMapping({"t": torch.zeros(shape)})))
        private = loads(blob, copy=True)["t"]
        assert not start <= private.data_ptr() < start + len(blob)

    def test_a_buffer_cannot_shrink_under_its_tensors(self) -> None:
        blob = bytearray(dumps(FrozenMapping({"t": torch.arange(300)})))
        arrived = loads(blob)["t"]
        with pytest.raises(BufferError):
            blob.clear()
        del arrived
        blob.clear()

    def test_tensors_outlive_the_names_of_their_frames(self) -> None:
        frames = [bytes(frame) for frame in frames_of(torch.arange(300), torch.arange(20_000))]
        small, large = decode(frames)["values"]
        del frames
        gc.collect()
        assert small.tolist() == list(range(300))
        assert large.tolist() == list(range(20_000))

    @pytest.mark.parametrize("copy", [False, True])
    @pytest.mark.parametrize("shift", range(1, 17))
    def test_a_misaligned_buffer_costs_a_copy_and_no_error(self, shift: int, copy: bool) -> None:
        value = FrozenMapping(
            {
                "a": torch.arange(300, dtype=torch.float64),
                "b": torch.ones(20_000, dtype=torch.complex64),
                "c": np.arange(300, dtype=np.int64),
                "d": torch.arange(300, dtype=torch.float64),
            }
        )
        blob = bytes(shift) + dumps(value)
        arrived = loads(memoryview(blob)[shift:], copy=copy)
        assert arrived == value
        assert arrived["a"].data_ptr() % 8 == 0
        assert arrived["c"].flags.aligned

    @pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, pickle.PickleBuffer, as_array])
    def test_any_contiguous_buffer(self, wrap: Callable[[bytes], object]) -> None:
        value = FrozenMapping({"t": torch.arange(3000.0)})
        assert decode([wrap(bytes(frame)) for frame in encode(value)]) == value
        assert loads(wrap(dumps(value))) == value

    def test_wider_items_are_read_as_bytes(self) -> None:
        value = FrozenMapping({"t": torch.arange(3000.0)})
        header, frame = encode(value)
        assert decode([header, np.frombuffer(frame, np.float32).reshape(3, 1000)]) == value

    def test_private_copies_are_writable(self) -> None:
        """One copy of what travelled once: a message cannot make it more."""
        tensor = torch.zeros(300)
        frames = [bytes(frame) for frame in frames_of(tensor, tensor, torch.zeros(400))]
        first, second, third = decode(frames, copy=True)["values"]
        first.fill_(1)
        assert second.sum() == 300
        assert third.sum() == 0
        assert decode(frames)["values"][0].sum() == 0


class TestMemoryMappedForReadingOnly:
    """vllm#26781: a write to what was received may neither crash nor change what others hold."""

    def test_a_write_ends_no_process_and_changes_no_file(self, tmp_path: Path) -> None:
        path = tmp_path / "message"
        content = {"image": {"pixel_values": torch.arange(100_000)}}
        save(MultimodalParams(multimodal_data=content), path)
        before = path.read_bytes()
        program = """if True:
            import mmap, sys
            from omniwire.serialization import loads
            with open(sys.argv[1], "rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            tensor = loads(mapping).multimodal_data["image"]["pixel_values"]
            tensor[0] = 7
            print(tensor[:3].tolist())
        """
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[7, 1, 2]\n", "")
        assert path.read_bytes() == before

    def test_other_read_only_buffers_are_not_copied(self) -> None:
        tensor = torch.arange(100_000)
        frames = encode(MultimodalParams(multimodal_data={"image": {"pixel_values": tensor}}))
        assert all(memoryview(frame).readonly for frame in frames)
        decoded = decode(frames).multimodal_data["image"]["pixel_values"]
        assert decoded.data_ptr() == tensor.data_ptr()
