"""Join of a spot instance in mid-step: from the start of its process to its first token.

    python -m benchmarks.spot_join [--rounds 5]

A job with one dedicated vLLM engine (27 M parameters, float32, CPU) generates more samples than it
takes at once, on weights that the trainer published. Engines take 4 samples a step, and 100 ms for
it, so that the one that generates leaves these cores to the one that comes, as one on another
machine would. Then a spot device on another node is opened. Parts: `process_s` until the engine is
up, by the process's start and its log; `pull_s` for opening, checking and loading the newest
version, as the instance says; `rest_s` all else until the job has a token of it: being found, asked
for the version and given samples, its first prefill and step. In the same run `copy_s` copies as
many bytes in this process, which no link is faster than. Prints one JSON line of medians; fails
when the rest is above 200 ms.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import grpc
import numpy as np

import plexclient as plex
from benchmarks import padded_engines
from benchmarks.service import report
from plexclient.wire.v1 import service_pb2, service_pb2_grpc
from plexsvc.clock import SystemClock
from tests.rigs.live_cluster import MIB, ROLLOUT, SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.spot_cluster import SPOT, change_instance, instances, spot_processes
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

REST_S: Final = 0.2
DEVICE: Final = "spot-a:0"
NODES: Final = {
    "node-a": [f'{{ kind = "train", bytes_total = {1024 * MIB} }}', ROLLOUT],
    "spot-a": [SPOT],
}
SAMPLES: Final = 128
STEP_MS: Final = 100
BATCH: Final = 4
OPTIONS: Final = plex.SamplingOptions(n=8, max_tokens=16, temperature=1.0, ignore_eos=True)
LOG_TIME: Final = "%H:%M:%S.%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """One join."""

    process_s: float
    pull_s: float
    rest_s: float
    nbytes: int


class Joins:
    """A job that generates while instances join."""

    def __init__(self, cluster: LiveCluster, job: plex.Job, model: Path) -> None:
        self._cluster = cluster
        actor = job.deploy(
            "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-4)
        )
        self._rollout = job.deploy(
            "rollout",
            model=actor,
            backend="vllm",
            max_model_len=256,
            instances=plex.Elastic(spot=(0, 1)),
        )
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        self._rollout.sync(actor)

    def once(self) -> Join:
        """Close the device, generate, open it, and time what comes."""
        self._until("serving")
        change_instance(self._cluster, "drain", DEVICE)
        self._until("closed")
        generate = self._generate()
        change_instance(self._cluster, "open", DEVICE)
        first_s = self._first_token()
        (pid,) = spot_processes(self._cluster)
        began_s = _began(pid)
        text = max(self._logs().glob("*spot*.log"), key=os.path.getmtime).read_text()
        loaded = re.search(r"version loaded .*nbytes=(\d+) load_us=(\d+)", text)
        assert loaded is not None, "it loads the newest version before it serves"
        ready_s = _logged("instance ready", text)
        pull_s = int(loaded[2]) / 1e6
        generate.result()
        return Join(
            process_s=ready_s - began_s,
            pull_s=pull_s,
            rest_s=first_s - ready_s - pull_s,
            nbytes=int(loaded[1]),
        )

    def _generate(self) -> Future[plex.Samples]:
        prompts = [[2 + (index + at) % 40 for at in range(16)] for index in range(SAMPLES // 8)]
        generate: Future[plex.Samples] = self._rollout.generate.submit(prompts, **OPTIONS)
        wait_until(
            lambda: any(int(one.get("running", 0)) for one in instances(self._cluster)),
            what="the dedicated instance generates",
        )
        return generate

    def _first_token(self) -> float:
        """Return when the spot instance had sent a token, by the wall clock."""
        metadata = (("authorization", f"Bearer {self._cluster.token}"),)
        with grpc.insecure_channel(self._cluster.address) as channel:
            stub = service_pb2_grpc.RouterStub(channel)
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                request = service_pb2.ListInstancesRequest()
                reply = stub.ListInstances(request, timeout=10, metadata=metadata)
                if any(one.kind == "spot" and one.running for one in reply.instances):
                    return _now_s()
                time.sleep(0.002)  # noqa: TID251 - looks at another process
        raise AssertionError("the spot instance sent no token in 120 s")

    def _until(self, phase: str) -> None:
        wait_until(
            lambda: (
                phase in {v.get("phase") for v in instances(self._cluster) if "spot" in v["kind"]}
            ),
            what=f"the spot device is {phase}",
            timeout_s=120,
        )

    def _logs(self) -> Path:
        return self._cluster.state_dir / "nodes" / "spot-a" / "logs"


def _began(pid: int) -> float:
    """Return when a process was started, by the wall clock."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return _now_s() - (up_s - ticks / os.sysconf("SC_CLK_TCK"))


def _logged(phrase: str, text: str) -> float:
    """Return when a line was logged today, by the wall clock."""
    (line,) = [line for line in text.splitlines() if phrase in line]
    at = datetime.strptime(line.split()[0], LOG_TIME)  # noqa: DTZ007 - logs say local time
    now = datetime.fromtimestamp(_now_s())  # noqa: DTZ006 - as above
    return datetime.combine(now, at.time()).timestamp()


def _now_s() -> float:
    return SystemClock().wall_us() / 1e6


def _copy_s(nbytes: int) -> float:
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    started_s = time.perf_counter()
    target[:] = source
    return time.perf_counter() - started_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="pxj") as place:
        padded_engines.install(Path(place), step_ms=STEP_MS)
        model = make_qwen3(
            Path(place) / "model", seed=0, hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64,
            ffn=1536,
        )  # fmt: skip
        with (
            start_cluster(
                Path(place),
                nodes=NODES,
                host_bytes=4096 * MIB,
                scheduler=f"{SHARES_ALL}max_num_seqs = {BATCH}\n",
            ) as cluster,
            cluster.connect() as connection,
            connection.job("joined") as job,
        ):
            made = Joins(cluster, job, model)
            joins = [made.once() for _ in range(rounds)]
    rest_s = statistics.median(join.rest_s for join in joins)
    report(
        rounds=rounds,
        process_s=round(statistics.median(join.process_s for join in joins), 3),
        pull_s=round(statistics.median(join.pull_s for join in joins), 3),
        pulled_bytes=joins[0].nbytes,
        copy_s=round(_copy_s(joins[0].nbytes), 4),
        rest_s=round(rest_s, 3),
        rest_longest_s=round(max(join.rest_s for join in joins), 3),
        cores=os.cpu_count(),
    )
    if rest_s > REST_S:
        sys.exit(f"beside its process and its pull an instance took {rest_s:.3f} s to join")


if __name__ == "__main__":
    main()
