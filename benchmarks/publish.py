"""What it takes to publish weights and to read them on the same host, against one memcpy.

    python -m benchmarks.publish [--mib 1024] [--rounds 9]

A state manager in this process publishes 290 tensors of a region in memory again and again, and
keeps the newest two versions. `copy_s` is how long the training deployment stands still for it,
`checksum_s` what follows until the version may be read, `read_s` how long a reader takes to verify
it and to copy it where it computes. The first two versions take new memory (`first_copy_s`), the
others that of the version before the last. `memcpy_s` copies as many bytes between buffers that
were used before, in the same rounds. Medians; one JSON line.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Final

import numpy as np

from benchmarks.service import report
from benchmarks.state_rig import publishes

NEW: Final = 2
"""Versions that take new memory."""


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    source, target = (np.ones(args.mib << 20, dtype=np.uint8) for _ in range(2))
    found, copies = [], []
    for one in publishes("cpu", nbytes=args.mib << 20, rounds=NEW + args.rounds):
        since_s = time.perf_counter()
        np.copyto(target, source)
        copies.append(time.perf_counter() - since_s)
        found.append(one)
    memcpy_s = statistics.median(copies)
    copy_s = statistics.median(one.copy_s for one in found[NEW:])
    report(
        mib=args.mib,
        memcpy_s=round(memcpy_s, 3),
        first_copy_s=round(statistics.median(one.copy_s for one in found[:NEW]), 3),
        copy_s=round(copy_s, 3),
        copy_over_memcpy=round(copy_s / memcpy_s, 2),
        checksum_s=round(statistics.median(one.checksum_s for one in found[NEW:]), 3),
        read_s=round(statistics.median(one.read_s for one in found[NEW:]), 3),
    )


if __name__ == "__main__":
    main()
