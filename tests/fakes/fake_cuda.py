"""A CUDA driver in host memory behind the names of `cuda.bindings.driver`, which counts and fails.

Physical memory is memory files, device addresses are reserved ranges of this process: pointers
work, descriptors pass between processes, and touching unmapped device memory ends the process.
"""

# ruff: noqa: PT018 - what CUDA refuses fails at once

from __future__ import annotations

import ctypes
import os
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from plexsvc.statelink.mapping import Extent, FixedMapping

GRANULARITY = 2 << 20
STALE = 0xA5
"""What fresh device memory holds: whatever its last owner left."""

FREEING = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuMemHostUnregister"}


class Code(IntEnum):
    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    INVALID_DEVICE = 101
    UNKNOWN = 999


@dataclass(slots=True)
class _Range:
    mapping: FixedMapping
    handle: int | None = None
    is_accessible: bool = False


@dataclass(slots=True)
class FakeCuda:
    """One GPU. `fail_at` counts calls down and fails that one, with an earlier call's error if it
    is one that frees, which has then done so."""

    nbytes: int = 1 << 30
    fail_at: int | None = None
    fail_with: Code = Code.UNKNOWN
    calls: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    ranges: dict[int, _Range] = field(default_factory=dict)
    handles: dict[int, tuple[int, int]] = field(default_factory=dict)  # to descriptor, bytes
    pinned: set[int] = field(default_factory=set)
    unfinished: set[int] = field(default_factory=set)
    """Streams that nobody has waited for since their last work."""

    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUdeviceptr = int
    CUmemGenericAllocationHandle = int

    @staticmethod
    def CUmemAllocationProp() -> SimpleNamespace:
        return SimpleNamespace(location=SimpleNamespace())

    @staticmethod
    def CUmemAccessDesc() -> SimpleNamespace:
        return SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        act = object.__getattribute__(self, f"_{name}")

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if self.fail_at is not None:
                self.fail_at -= 1
                if self.fail_at == 0:
                    if name in FREEING:
                        act(*arguments)
                    return (self.fail_with, None)
            try:
                return (Code.SUCCESS, *(act(*arguments) or ()))
            except MemoryError:
                return (Code.OUT_OF_MEMORY, None)

        return call

    @property
    def is_balanced(self) -> bool:
        """Whether nothing is held: no memory, no range of addresses, no page lock."""
        return not (self.handles or self.ranges or self.pinned)

    def cuGetErrorString(self, code: Code) -> tuple[Code, bytes]:
        return Code.SUCCESS, code.name.lower().encode()

    def _cuInit(self, _flags: int) -> None:
        return None

    def _cuDeviceGetCount(self) -> tuple[int]:
        return (1,)

    def _cuDeviceGet(self, index: int) -> tuple[int]:
        return (index,)

    def _cuDeviceGetName(self, nbytes: int, _device: int) -> tuple[bytes]:
        return (b"Fake H200\0".ljust(nbytes, b" "),)  # as the bindings fill it

    def _cuDeviceTotalMem(self, _device: int) -> tuple[int]:
        return (self.nbytes,)

    def _cuDevicePrimaryCtxRetain(self, _device: int) -> tuple[str]:
        return ("context",)

    def _cuCtxSetCurrent(self, _context: str) -> None:
        return None

    def _cuCtxSynchronize(self) -> None:
        return None

    def _cuMemGetInfo(self) -> tuple[int, int]:
        used = sum(nbytes for _, nbytes in self.handles.values())
        return self.nbytes - used, self.nbytes

    def _cuMemGetAllocationGranularity(self, _prop: object, _option: int) -> tuple[int]:
        return (GRANULARITY,)

    def _cuStreamCreate(self, flags: int) -> tuple[int]:
        assert flags == 1, "copies on a stream that waits for the default one never overlap"
        return (self.calls["cuStreamCreate"],)

    def _cuStreamSynchronize(self, stream: int) -> None:
        self.unfinished.discard(stream)

    def _cuMemCreate(self, nbytes: int, prop: SimpleNamespace, _flags: int) -> tuple[int]:
        assert prop.requestedHandleTypes == prop.location.type == prop.type == 1
        assert nbytes % GRANULARITY == 0, nbytes
        if sum(size for _, size in self.handles.values()) + nbytes > self.nbytes:
            raise MemoryError
        fd = os.memfd_create("fake-gpu")
        os.truncate(fd, nbytes)
        os.pwrite(fd, bytes([STALE]) * nbytes, 0)
        handle = 1000 + self.calls["cuMemCreate"] + self.calls["cuMemImportFromShareableHandle"]
        self.handles[handle] = fd, nbytes
        return (handle,)

    def _cuMemExportToShareableHandle(self, handle: int, kind: int, _flags: int) -> tuple[int]:
        assert kind == 1, kind
        return (os.dup(self.handles[handle][0]),)

    def _cuMemImportFromShareableHandle(self, fd: int, _kind: int) -> tuple[int]:
        handle = 1000 + self.calls["cuMemCreate"] + self.calls["cuMemImportFromShareableHandle"]
        self.handles[handle] = os.dup(fd), os.fstat(fd).st_size
        return (handle,)

    def _cuMemRelease(self, handle: int) -> None:
        os.close(self.handles.pop(handle)[0])

    def _cuMemAddressReserve(self, nbytes: int, _align: int, at: int, _flags: int) -> tuple[int]:
        assert nbytes % GRANULARITY == 0 and at == 0, (nbytes, at)
        mapping = FixedMapping(nbytes)
        self.ranges[mapping.address] = _Range(mapping)
        return (mapping.address,)

    def _cuMemMap(self, at: int, nbytes: int, offset: int, handle: int, _flags: int) -> None:
        held = self.ranges[at]
        fd, size = self.handles[handle]
        assert held.handle is None and nbytes == size == held.mapping.nbytes and offset == 0
        held.mapping.attach(fd, [Extent(offset=0, nbytes=nbytes)], is_populated=False)
        held.handle = handle

    def _cuMemSetAccess(self, at: int, nbytes: int, access: list[Any], count: int) -> None:
        assert (nbytes, count) == (self.ranges[at].mapping.nbytes, len(access))
        assert access[0].flags == 3
        self.ranges[at].is_accessible = True

    def _cuMemUnmap(self, at: int, nbytes: int) -> None:
        held = self.ranges[at]
        assert held.handle is not None and nbytes == held.mapping.nbytes, held
        held.mapping.park()
        held.handle, held.is_accessible = None, False

    def _cuMemAddressFree(self, at: int, nbytes: int) -> None:
        held = self.ranges.pop(at)
        assert held.handle is None and nbytes == held.mapping.nbytes, "mapped memory is in it"
        held.mapping.close()

    def _cuMemsetD8Async(self, at: int, value: int, nbytes: int, stream: int) -> None:
        self.unfinished.add(stream)
        ctypes.memset(self._device(at, nbytes), value, nbytes)

    def _cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._copy("off", stream, nbytes)
        ctypes.memmove(target, self._device(source, nbytes), nbytes)

    def _cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._copy("on", stream, nbytes)
        ctypes.memmove(self._device(target, nbytes), source, nbytes)

    def _cuMemHostRegister(self, at: int, _nbytes: int, _flags: int) -> None:
        assert at not in self.pinned
        self.pinned.add(at)

    def _cuMemHostUnregister(self, at: int) -> None:
        self.pinned.remove(at)

    def _copy(self, way: str, stream: int, nbytes: int) -> None:
        self.unfinished.add(stream)
        self.moved[way] += nbytes

    def _device(self, at: int, nbytes: int) -> int:
        """Return `at` when [at, at + nbytes) is accessible device memory."""
        start, held = max((a, r) for a, r in self.ranges.items() if a <= at)
        assert held.is_accessible and at + nbytes <= start + held.mapping.nbytes, (at, nbytes)
        return at
