"""Lack of memory on a rank, told with its numbers: bytes asked for, bytes free, bytes in all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch

from plexsvc.errors import ErrorCode, PlexError

_ASKED: Final = re.compile(
    r"(?:tried to allocate|unable to allocate) ([\d.]+) ?(\w+)", re.IGNORECASE
)
_UNITS: Final = {"bytes": 0, "kib": 10, "mib": 20, "gib": 30, "tib": 40}
_ON_HOST: Final = "DefaultCPUAllocator"
"""Begins what torch says on a CPU, in a mere RuntimeError."""


def out_of_memory(error: Exception, *, what: str) -> PlexError | None:
    """Return what is told of an error that is a lack of memory; None for another.

    To be called where the error is caught, as long as what was allocated before is still held.
    """
    is_device = isinstance(error, torch.OutOfMemoryError)
    if not (is_device or isinstance(error, MemoryError) or _ON_HOST in str(error)):
        return None
    asked: object = "some"
    if (found := _ASKED.search(str(error))) is not None:
        asked = int(float(found[1]) * (1 << _UNITS.get(found[2].lower(), 0)))
    free, total = torch.cuda.mem_get_info() if is_device and torch.cuda.is_available() else _host()
    place = "device" if is_device else "host"
    return PlexError(
        ErrorCode.OUT_OF_MEMORY,
        f"{what} ran out of memory: it asked for {asked} bytes more, and {free} of the {place}'s "
        f"{total} were free. Deploy with smaller micro_batch_tokens or more ranks",
        asked_bytes=asked,
        free_bytes=free,
        total_bytes=total,
    )


def _host() -> tuple[int, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kib["MemAvailable"] << 10, kib["MemTotal"] << 10
