"""CUDA memory that moves between processes: physical allocations as descriptors, mapped at will.

The driver's virtual memory management gives a GPU what memory files give a CPU host: the state
manager creates physical memory and passes a descriptor (CUDA's shareable handle, its IPC by
descriptor), a rank maps it at a reserved address, unmaps it to park, and maps another there later.
Pointers and views stay valid, and parked memory is really gone from the device. The driver is
called through NVIDIA's `cuda-bindings`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.statelink.mapping import Extent

if TYPE_CHECKING:
    import torch

_KINDS: Final = {
    2: ErrorCode.NO_ROOM,  # CUDA_ERROR_OUT_OF_MEMORY
    100: ErrorCode.BAD_REQUEST,  # CUDA_ERROR_NO_DEVICE
    101: ErrorCode.BAD_REQUEST,  # CUDA_ERROR_INVALID_DEVICE
}
"""What CUDA's codes mean to us; any other is `internal`."""
_NAME_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of this machine."""

    index: int
    name: str
    nbytes: int


def load_api() -> Any:
    """Return NVIDIA's bindings of the CUDA driver, not yet initialised.

    Raises:
        ImportError: `requirements/gpu.txt` is not installed.
    """
    return importlib.import_module("cuda.bindings.driver")


def gpus() -> list[Gpu]:
    """Return the GPUs that this process sees; none without a driver. Creates no context."""
    try:
        api = load_api()
        _check(api, "cuInit", api.cuInit(0), where="this machine")
    except (ImportError, RuntimeError, PlexError):  # no bindings, no libcuda, no device
        return []
    (count,) = _check(api, "cuDeviceGetCount", api.cuDeviceGetCount(), where="this machine")
    return [_describe(api, index) for index in range(count)]


def is_available() -> bool:
    """Whether this machine has a CUDA driver and a device."""
    return bool(gpus())


def _describe(api: Any, index: int) -> Gpu:
    where = f"GPU {index}"
    (device,) = _check(api, "cuDeviceGet", api.cuDeviceGet(index), where=where)
    (name,) = _check(api, "cuDeviceGetName", api.cuDeviceGetName(_NAME_BYTES, device), where=where)
    (nbytes,) = _check(api, "cuDeviceTotalMem", api.cuDeviceTotalMem(device), where=where)
    text = bytes(name).partition(b"\0")[0]  # what follows the zero is whatever stood there
    return Gpu(index=index, name=text.decode(), nbytes=int(nbytes))


@functools.cache
def open_driver(gpu: int) -> CudaDriver:
    """Return this process's driver of a GPU: one, and so one reference to its primary context."""
    return CudaDriver(gpu)


class CudaDriver:
    """The CUDA driver calls of this module on one GPU, in its primary context.

    Copies run on streams of their own, one in each direction, so that an offload and a load overlap
    with each other and with nothing else. Every method may raise `internal` with CUDA's words.
    """

    def __init__(self, gpu: int) -> None:
        """Take the GPU that this process knows as `gpu`.

        Raises:
            PlexError: `bad_request` without the bindings, a driver or that GPU.
        """
        self.gpu = gpu
        try:
            self._api = api = load_api()
            self._call("cuInit", 0)
        except (ImportError, RuntimeError) as error:
            raise bad_request(
                f"GPU {gpu} is configured as a device, but CUDA cannot be used here: {error}; "
                "install requirements/gpu.txt and NVIDIA's driver, or use memory = 'cpu'"
            ) from error
        (device,) = self._call("cuDeviceGet", gpu)
        (self._context,) = self._call("cuDevicePrimaryCtxRetain", device)
        self._handle_type = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._properties = api.CUmemAllocationProp()
        self._properties.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.requestedHandleTypes = self._handle_type
        self._properties.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = gpu
        self._access = api.CUmemAccessDesc()
        self._access.location = self._properties.location
        self._access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        minimum = api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        (unit,) = self._call("cuMemGetAllocationGranularity", self._properties, minimum)
        self.granularity = int(unit)
        self.enter()
        # Streams that wait for the default one would wait for each other.
        is_own = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        (self._out,) = self._call("cuStreamCreate", int(is_own))
        (self._in,) = self._call("cuStreamCreate", int(is_own))

    def enter(self) -> None:
        """Make the GPU's context this thread's."""
        self._call("cuCtxSetCurrent", self._context)

    def settle(self) -> None:
        """Wait for all work of this process on the GPU."""
        self.enter()
        self._call("cuCtxSynchronize")

    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes of the GPU."""
        self.enter()
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def round_up(self, nbytes: int) -> int:
        """Return `nbytes` in whole units of the GPU's granularity."""
        return -(-nbytes // self.granularity) * self.granularity

    def create(self, nbytes: int) -> tuple[int, int]:
        """Return (handle, descriptor) of new physical memory of rounded size; its bytes are stale.

        Raises:
            PlexError: `no_room` when the GPU lacks it.
        """
        (handle,) = self._call("cuMemCreate", self.round_up(nbytes), self._properties, 0)
        with ExitStack() as undo:
            undo.callback(self.release, int(handle))
            (fd,) = self._call("cuMemExportToShareableHandle", handle, self._handle_type, 0)
            undo.pop_all()
        return int(handle), int(fd)

    def import_fd(self, fd: int) -> int:
        """Return the handle of memory that another process created."""
        (handle,) = self._call("cuMemImportFromShareableHandle", fd, self._handle_type)
        return int(handle)

    def release(self, handle: int) -> None:
        """Let go of a handle; the memory lives while it is mapped or held elsewhere."""
        self._call("cuMemRelease", self._api.CUmemGenericAllocationHandle(handle))

    def reserve(self, nbytes: int) -> int:
        """Return a fresh range of device addresses of rounded size."""
        (address,) = self._call("cuMemAddressReserve", self.round_up(nbytes), 0, self._at(0), 0)
        return int(address)

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Back a reserved range with memory, readable and writable, or leave it as it was."""
        size = self.round_up(nbytes)
        self._call(
            "cuMemMap",
            *(self._at(address), size, 0),
            *(self._api.CUmemGenericAllocationHandle(handle), 0),
        )
        with ExitStack() as undo:
            undo.callback(self.unmap, address, nbytes)
            self._call("cuMemSetAccess", self._at(address), size, [self._access], 1)
            undo.pop_all()

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the memory from a range; the addresses stay reserved."""
        self._call("cuMemUnmap", self._at(address), self.round_up(nbytes))

    def free_address(self, address: int, nbytes: int) -> None:
        """Give a reserved range back."""
        self._call("cuMemAddressFree", self._at(address), self.round_up(nbytes))

    def zero(self, address: int, nbytes: int) -> None:
        """Write `nbytes` zeroes and return when they are there."""
        self.enter()
        self._call("cuMemsetD8Async", self._at(address), 0, nbytes, self._in)
        self._call("cuStreamSynchronize", self._in)

    def to_host(self, target: int, address: int, nbytes: int) -> None:
        """Copy to host memory and return when it is there."""
        self.enter()
        self._call("cuMemcpyDtoHAsync", target, self._at(address), nbytes, self._out)
        self._call("cuStreamSynchronize", self._out)

    def from_host(self, address: int, source: int, nbytes: int) -> None:
        """Copy from host memory and return when it is there, for other processes too."""
        self.enter()
        self._call("cuMemcpyHtoDAsync", self._at(address), source, nbytes, self._in)
        self._call("cuStreamSynchronize", self._in)

    def pin(self, address: int, nbytes: int) -> None:
        """Page-lock host memory so that copies run at the bus's speed; about 0.3 s a GiB."""
        self.enter()
        self._call("cuMemHostRegister", address, nbytes, 0)

    def unpin(self, address: int) -> None:
        """Undo `pin`, before the memory is unmapped."""
        self.enter()
        self._call("cuMemHostUnregister", address)

    def _at(self, address: int) -> Any:
        return self._api.CUdeviceptr(address)

    def _call(self, name: str, *arguments: object) -> Sequence[Any]:
        answer = getattr(self._api, name)(*arguments)
        return _check(self._api, name, answer, where=f"GPU {self.gpu}")


def _check(api: Any, name: str, answer: Sequence[Any], *, where: str) -> Sequence[Any]:
    """Return what a call of the bindings answered after its code."""
    code, *values = answer
    if int(code) == 0:
        return values
    _, text = api.cuGetErrorString(code)
    reason = (text or b"unknown error").decode()
    kind = _KINDS.get(int(code), ErrorCode.INTERNAL)
    raise PlexError(kind, f"{name} on {where}: {reason}", cuda=int(code))


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
    """One region of a rank on its GPU: `plexsvc.statelink.regions.RegionMemory`.

    A process sees its own GPU alone, as GPU 0 (`plexsvc.node.gpus`).
    """

    def __init__(self, nbytes: int) -> None:
        self._driver = open_driver(0)
        self._driver.enter()
        self._nbytes = nbytes
        self._address = self._driver.reserve(nbytes)
        self._is_attached = False

    @property
    def address(self) -> int:
        """Where it lies on the device, for life."""
        return self._address

    def attach(self, fd: int, extents: Sequence[Extent], *, is_read_only: bool = False) -> None:
        """Map the memory behind `fd`; a CUDA region is one extent.

        The driver maps device memory for reading and writing alone, so `is_read_only` is not kept.
        """
        assert len(extents) == 1, extents
        del is_read_only
        self._driver.enter()
        if self._is_attached:
            # Granted again, by a state manager's successor: the same memory, which kernels may use.
            return
        with ExitStack() as done:
            handle = self._driver.import_fd(fd)
            done.callback(self._driver.release, handle)  # the mapping keeps the memory
            self._driver.map(self._address, self._nbytes, handle)
            self._is_attached = True

    def settle(self) -> None:
        """Wait for the device's work, before others read."""
        self._driver.settle()

    def park(self) -> None:
        """Unmap; the memory is the state manager's alone again, and torch's pool the device's."""
        if self._is_attached:
            self._driver.settle()
            self._is_attached = False  # first: what failed to unmap is not unmapped again
            self._driver.unmap(self._address, self._nbytes)
            if (torch := sys.modules.get("torch")) is not None:
                torch.cuda.empty_cache()

    def tensor(self, nbytes: int) -> torch.Tensor:
        """Return a tensor over the memory; it does not own it."""
        import torch

        array = _DeviceArray(address=self._address, nbytes=nbytes)
        tensor = torch.as_tensor(array, device=f"cuda:{self._driver.gpu}")
        assert tensor.data_ptr() == self._address, "torch copied the region instead of viewing it"
        return tensor
