"""What a tenant's checks of small programs take beside another tenant's programs, kind by kind.

`python -m benchmarks.reward_neighbours` prints one JSON line: the time of a check, and that of all,
beside nobody, beside a program that computes, and beside hostile ones
(`tests/rigs/hostile_code.py`). There are two workers, so each tenant has one. Wanted: no hostile
program costs more than a fifth beyond one that computes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.reward_proxy import CODE, TESTS, request
from plexclient.wire.v1 import reward_pb2_grpc
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.main import serving
from plexsvc.rpc import loops
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import make_keys, write_keys
from tests.rigs.hostile_code import GREEDY

COMPUTES: Final = "loop"
NOBODY: Final = "nobody"
SECONDS: Final = 1.0
"""Time that a neighbour's program may take."""


async def beside(stub: Any, code: str | None, *, checks: int) -> dict[str, float]:
    """Return the median time of a check, and the time of all, beside programs of a neighbour."""
    neighbour = None
    if code is not None:
        asked = request("code_python", code, TESTS, samples=200)
        asked.tenant, asked.settings = "neighbour", json.dumps({"seconds": SECONDS})
        neighbour = stub.Score(asked, timeout=600)
        async with asyncio.timeout(60):
            await anext(aiter(neighbour))  # both workers have been its own
    asked = request("code_python", CODE, TESTS, samples=checks)
    asked.batch_id = secrets.token_bytes(16)
    begun_s = time.monotonic()
    times_ms = [reply.time_us / 1e3 async for reply in stub.Score(asked, timeout=600)]
    took_s = time.monotonic() - begun_s
    if neighbour is not None:
        neighbour.cancel()
    return {"check_ms": round(statistics.median(times_ms), 1), "all_s": round(took_s, 2)}


async def measure(checks: int, repeats: int, *, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return the figures, of the kinds that are asked for or of all."""
    kinds: Mapping[str, str | None] = {
        kind: code
        for kind, code in {NOBODY: None, **GREEDY}.items()
        if not only or kind in {COMPUTES, *only}
    }
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, code in kinds.items():
            directory = Path(tempfile.mkdtemp(prefix="plexsvc-"))
            keys = make_keys()
            write_keys(directory / "keys.json", keys)
            config = RewardServiceConfig(
                listen=f"unix:{directory}/p.sock",
                keys_file=directory / "keys.json",
                min_workers=2,
                max_workers=2,
            )
            async with serving(config) as (_, address), open_channel(address, keys) as channel:
                stub: Any = reward_pb2_grpc.RewardStub(channel)
                found[kind].append(await beside(stub, code, checks=checks))
    medians = {
        kind: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for kind, runs in found.items()
    }
    computes_ms = medians[COMPUTES]["check_ms"]
    ratios = {kind: round(run["check_ms"] / computes_ms, 2) for kind, run in medians.items()}
    return {
        "benchmark": "reward_neighbours",
        "beside": medians,
        "check_against_computing": ratios,
        "worst": max(ratios, key=lambda kind: ratios[kind]),
        "load_before": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default="", help="names of hostile programs; all unless given")
    arguments = parser.parse_args()
    only = [kind for kind in arguments.kinds.split(",") if kind]
    found = loops.run(
        asyncio.wait_for(measure(arguments.checks, arguments.repeats, only=only), 1800)
    )
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
