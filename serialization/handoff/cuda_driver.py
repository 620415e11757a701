"""The few functions of the CUDA driver that torch does not offer on their own terms.

torch exports memory only together with a counter in a named file, which stays behind when the
process is killed, and what it opens waits for the device when it is garbage-collected. The
driver, which is in the process already, does neither.
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any, Final

from omniwire.contracts.errors import HandoffError

_IPC_HANDLE_BYTES: Final = 64
_LAZY_ENABLE_PEER_ACCESS: Final = 1
_CAPTURE_MODE_RELAXED: Final = 2


class _IpcMemHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_ubyte * _IPC_HANDLE_BYTES),)


_Pointer: Final = ctypes.c_uint64  # CUdeviceptr
_Context: Final = ctypes.c_void_p  # CUcontext

_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_Context), ctypes.c_int),
    "cuCtxPushCurrent_v2": (_Context,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(_Context),),
    "cuMemGetAddressRange_v2": (
        ctypes.POINTER(_Pointer),
        ctypes.POINTER(ctypes.c_size_t),
        _Pointer,
    ),
    "cuIpcGetMemHandle": (ctypes.POINTER(_IpcMemHandle), _Pointer),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_Pointer), _IpcMemHandle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (_Pointer,),
    "cuThreadExchangeStreamCaptureMode": (ctypes.POINTER(ctypes.c_int),),
}
"""Arguments as in <cuda.h>; each function returns a CUresult."""


class CudaDriver:
    """The driver library, in the contexts that torch uses.

    Args:
        library: Its file.

    Raises:
        HandoffError: It is not there.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name, arguments in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, ctypes.c_int
        except (OSError, AttributeError) as error:
            raise HandoffError(f"expected the CUDA driver, got {error}") from None
        self._lock = threading.Lock()
        self._contexts: dict[int, Any] = {}

    def export(self, device: int, address: int) -> tuple[bytes, int]:
        """A handle of the allocation that an address is in, and the address's offset in it.

        Raises:
            HandoffError: It is not from cuMemAlloc, but from expandable segments, say.
        """
        base, size, handle = _Pointer(), ctypes.c_size_t(), _IpcMemHandle()
        with self._in_context(device):
            self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle.reserved), address - base.value

    def open(self, device: int, memory: bytes) -> tuple[int, int]:
        """Map an allocation of another process: its address and size here.

        Raises:
            HandoffError: It cannot be, or is no more.
        """
        handle = _IpcMemHandle.from_buffer_copy(memory)
        base, size, address = _Pointer(), ctypes.c_size_t(), _Pointer()
        with self._in_context(device):
            self._call(
                "cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _LAZY_ENABLE_PEER_ACCESS
            )
            try:
                self._call(
                    "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address
                )
            except HandoffError:
                self._call("cuIpcCloseMemHandle", address)
                raise
        return address.value, size.value

    def close(self, device: int, address: int) -> None:
        """Undo one `open`; the driver counts them.

        Raises:
            HandoffError: Nothing is open there.
        """
        with self._in_context(device):
            self._call("cuIpcCloseMemHandle", address)

    def relax_captures(self) -> None:
        """Have this thread's calls be no concern of a graph that another thread captures."""
        mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    @contextlib.contextmanager
    def _in_context(self, device: int) -> Iterator[None]:
        """Use the device's primary context, which is torch's, whatever this thread has current."""
        self._call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(_Context()))

    def _context(self, device: int) -> Any:
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                ordinal, context = ctypes.c_int(), _Context()
                self._call("cuDeviceGet", ctypes.byref(ordinal), device)
                # Retained once, for as long as the process lives.
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
                self._contexts[device] = context
            return context

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(text))
            got = (text.value or b"an unknown error").decode()
            raise HandoffError(f"expected {name} to succeed, got {got} ({result})")
