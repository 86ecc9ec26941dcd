"""CUDA memory that moves between processes: physical allocations as descriptors, mapped at will.

The driver's virtual memory management gives a GPU what memory files give a CPU host: the state
manager creates physical memory and passes a descriptor (CUDA's shareable handle, its IPC by
descriptor), a rank maps it at a reserved address, unmaps it to park, and maps another there later.
Pointers and views stay valid, and parked memory is really gone from the device. NOT RUN on a GPU
yet; see docs/status.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.mapping import Extent

if TYPE_CHECKING:
    import torch

_ALLOCATION_PINNED: Final = 1
_HANDLE_POSIX_FD: Final = 1
_LOCATION_DEVICE: Final = 1
_ACCESS_READ_WRITE: Final = 3
_GRANULARITY_MINIMUM: Final = 0
_OUT_OF_MEMORY: Final = 2


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]  # type: ignore[mutable-override]  # ctypes' way


class _AllocationFlags(ctypes.Structure):
    _fields_ = [  # type: ignore[mutable-override]  # ctypes' way
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocationProperties(ctypes.Structure):
    _fields_ = [  # type: ignore[mutable-override]  # ctypes' way
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class _AccessDescription(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]  # type: ignore[mutable-override]  # ctypes' way


def is_available() -> bool:
    """Whether this machine has a CUDA driver and a device."""
    count = ctypes.c_int()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0


class Driver:
    """The CUDA driver calls of this module on one device, in its primary context."""

    def __init__(self, device_index: int) -> None:
        try:
            self._library: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            text = f"device {device_index} is configured as cuda, but there is no CUDA driver"
            raise PlexError(ErrorCode.BAD_REQUEST, f"{text}: {error}") from error
        self.device_index = device_index
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_index))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._properties = _AllocationProperties(
            type=_ALLOCATION_PINNED,
            requested_handle_types=_HANDLE_POSIX_FD,
            location=_Location(type=_LOCATION_DEVICE, id=device_index),
        )
        self.granularity = self._find_granularity()

    def enter(self) -> None:
        """Make the device's context this thread's."""
        self._call("cuCtxSetCurrent", self._context)

    def settle(self) -> None:
        """Wait for the device's work."""
        self.enter()
        self._call("cuCtxSynchronize")

    def round_up(self, nbytes: int) -> int:
        """Return `nbytes` in whole units of the device's granularity."""
        return -(-nbytes // self.granularity) * self.granularity

    def create(self, nbytes: int) -> tuple[int, int]:
        """Return (handle, descriptor) of new physical memory of rounded size.

        Raises:
            PlexError: `no_room` when the device lacks it.
        """
        handle, fd = ctypes.c_ulonglong(), ctypes.c_int()
        size = ctypes.c_size_t(self.round_up(nbytes))
        properties = ctypes.byref(self._properties)
        self._call("cuMemCreate", ctypes.byref(handle), size, properties, ctypes.c_ulonglong(0))
        self._call(
            "cuMemExportToShareableHandle",
            ctypes.byref(fd),
            handle,
            ctypes.c_int(_HANDLE_POSIX_FD),
            ctypes.c_ulonglong(0),
        )
        return handle.value, fd.value

    def import_fd(self, fd: int) -> int:
        """Return the handle of memory that another process created."""
        handle = ctypes.c_ulonglong()
        self._call(
            "cuMemImportFromShareableHandle",
            ctypes.byref(handle),
            ctypes.c_void_p(fd),
            ctypes.c_int(_HANDLE_POSIX_FD),
        )
        return handle.value

    def release(self, handle: int) -> None:
        """Let go of a handle; the memory lives while it is mapped or held elsewhere."""
        self._call("cuMemRelease", ctypes.c_ulonglong(handle))

    def reserve(self, nbytes: int) -> int:
        """Return a fresh range of device addresses of rounded size."""
        address, none = ctypes.c_ulonglong(), ctypes.c_ulonglong(0)
        size = ctypes.c_size_t(self.round_up(nbytes))
        alignment = ctypes.c_size_t(0)
        self._call("cuMemAddressReserve", ctypes.byref(address), size, alignment, none, none)
        return address.value

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Back a reserved range with memory, readable and writable."""
        at, size = ctypes.c_ulonglong(address), ctypes.c_size_t(self.round_up(nbytes))
        none = ctypes.c_ulonglong(0)
        self._call("cuMemMap", at, size, ctypes.c_size_t(0), ctypes.c_ulonglong(handle), none)
        access = _AccessDescription(location=self._properties.location, flags=_ACCESS_READ_WRITE)
        self._call("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the memory from a range; the addresses stay reserved."""
        size = ctypes.c_size_t(self.round_up(nbytes))
        self._call("cuMemUnmap", ctypes.c_ulonglong(address), size)

    def free_address(self, address: int, nbytes: int) -> None:
        """Give a reserved range back."""
        size = ctypes.c_size_t(self.round_up(nbytes))
        self._call("cuMemAddressFree", ctypes.c_ulonglong(address), size)

    def zero(self, address: int, nbytes: int) -> None:
        """Write zeroes."""
        at, size = ctypes.c_ulonglong(address), ctypes.c_size_t(self.round_up(nbytes))
        self._call("cuMemsetD8_v2", at, ctypes.c_ubyte(0), size)

    def to_host(self, target: int, address: int, nbytes: int) -> None:
        """Copy to host memory and return when it is there."""
        at, size = ctypes.c_ulonglong(address), ctypes.c_size_t(nbytes)
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(target), at, size)

    def from_host(self, address: int, source: int, nbytes: int) -> None:
        """Copy from host memory and return when it is there."""
        at, size = ctypes.c_ulonglong(address), ctypes.c_size_t(nbytes)
        self._call("cuMemcpyHtoD_v2", at, ctypes.c_void_p(source), size)
        self._call("cuCtxSynchronize")

    def pin(self, address: int, nbytes: int) -> None:
        """Page-lock host memory so that copies run at the bus's speed."""
        size = ctypes.c_size_t(nbytes)
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), size, ctypes.c_uint(0))

    def unpin(self, address: int) -> None:
        """Undo `pin`, before the memory is unmapped."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def _find_granularity(self) -> int:
        found = ctypes.c_size_t()
        option = ctypes.c_int(_GRANULARITY_MINIMUM)
        properties = ctypes.byref(self._properties)
        self._call("cuMemGetAllocationGranularity", ctypes.byref(found), properties, option)
        return found.value

    def _call(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        reason = (text.value or b"unknown error").decode()
        kind = ErrorCode.NO_ROOM if code == _OUT_OF_MEMORY else ErrorCode.INTERNAL
        raise PlexError(kind, f"{name} on CUDA device {self.device_index}: {reason}", cuda=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceArray:
    """What torch needs to see device memory as an array."""

    address: int
    nbytes: int

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


class CudaMemory:
    """One region of a rank on a CUDA device: `plexsvc.statelink.regions.RegionMemory`."""

    def __init__(self, nbytes: int, *, device_index: int) -> None:
        self._driver = Driver(device_index)
        self._driver.enter()
        self._nbytes = nbytes
        self._address = self._driver.reserve(nbytes)
        self._is_attached = False

    @property
    def address(self) -> int:
        """Where it lies on the device, for life."""
        return self._address

    def attach(self, fd: int, extents: Sequence[Extent]) -> None:
        """Map the memory behind `fd`; a CUDA region is one extent."""
        assert len(extents) == 1, extents
        self._driver.enter()
        handle = self._driver.import_fd(fd)
        try:
            self._driver.map(self._address, self._nbytes, handle)
        finally:
            self._driver.release(handle)  # the mapping keeps the memory
        self._is_attached = True

    def settle(self) -> None:
        """Wait for the device's work, before others read."""
        self._driver.settle()

    def park(self) -> None:
        """Unmap; the memory is the state manager's alone again."""
        if self._is_attached:
            self._driver.settle()
            self._driver.unmap(self._address, self._nbytes)
            self._is_attached = False

    def tensor(self, nbytes: int) -> torch.Tensor:
        """Return a tensor over the memory; it does not own it."""
        import torch  # noqa: PLC0415 - routers import this package and have no torch

        array = _DeviceArray(address=self._address, nbytes=nbytes)
        return torch.as_tensor(array, device=f"cuda:{self._driver.device_index}")
