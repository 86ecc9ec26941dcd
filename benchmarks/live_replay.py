"""How well a simulation predicts a live run: five jobs on three node groups, then their journal.

    python -m benchmarks.live_replay [--kinds paced tight pipelined drained] [--rounds 3]

A service with three nodes of one device, each of which holds one job's state, runs five training
jobs (fsdp, tiny model). `paced` jobs wait long for their rollouts; `tight` ones hardly, so devices
are contended, and the machine too; `pipelined` ones are tight and submit a cycle's operations
together; while `drained` ones run, a node joins and another is drained, so deployments move; of
`sampled` ones (not by default) two generate on a vLLM instance and sync.

The journal is replayed (`is_identical`) and the wall time predicted by the mean of five virtual
runs, with costs of the first half of the run (`half`) and of all of it (`whole`). Where the groups
share a machine's cores, costs fall when a job ends, which a first half cannot know. `busy_cores` is
what the whole machine worked, whoever for.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import load
from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.sim.predict import Prediction, predict
from plexsvc.sim.replay import verify
from plexsvc.store.reader import read_journal
from tests.rigs.live_cluster import ROLLOUT, TRAIN, start_cluster
from tests.rigs.live_jobs import PacedJob, run_together
from tests.rigs.tiny_models import make_qwen3
from tests.system import test_live_plan

TARGET = 0.05


def jobs_of(kind: str) -> list[PacedJob]:
    """Return the five jobs of a kind of run."""
    paced = [
        PacedJob(
            name=f"job-{at}",
            seed=at,
            gap_s=0.5 + 0.2 * at,
            cycles=16 - 2 * at,
            sequences=24,
            longest=64,
            start_s=0.3 * at,
        )
        for at in range(5)
    ]
    if kind == "drained":
        return test_live_plan.JOBS
    tight = [replace(job, gap_s=0.02, cycles=40) for job in paced]
    if kind == "tight":
        return tight
    if kind == "pipelined":
        return [replace(job, pipelines=True) for job in tight]
    if kind == "sampled":
        return [replace(job, samples=at < 2) for at, job in enumerate(paced)]
    return paced


def record(kind: str, home: Path) -> Recording:
    """Run the jobs once; return their journal."""
    model = make_qwen3(home / "model", seed=0)
    nodes = {f"node-{name}": [TRAIN] for name in "abc"}
    if kind == "sampled":
        nodes["node-a"] = [TRAIN, ROLLOUT, ROLLOUT]
    with ExitStack() as stack:
        if kind == "drained":
            address = stack.enter_context(test_live_plan.another_node(home))
        live = stack.enter_context(start_cluster(home, nodes=nodes, extra=test_live_plan.OPERATOR))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_together, live, jobs_of(kind), model=model)
            if kind == "drained":
                test_live_plan.change_nodes(live, address)
            running.result()
        return journal.read(read_journal(str(live.state_dir / "plexsvc.db")).rows)


def measure(kind: str) -> dict[str, object]:
    """Run the jobs once; return what their journal tells."""
    with tempfile.TemporaryDirectory(prefix="plex-bench-") as scratch:
        busy_s, began_s = load.busy_s(), time.monotonic()
        recorded = record(kind, Path(scratch))
        busy_cores = (load.busy_s() - busy_s) / (time.monotonic() - began_s)
    verdict = verify(recorded)
    half, whole = predict(recorded, share=0.5), predict(recorded, share=1.0)
    return {
        "kind": kind,
        "is_identical": verdict.is_identical,
        "events": verdict.events,
        "operations": half.operations,
        "measured_s": round(half.run.measured_s, 2),
        "half": figures(half),
        "whole": figures(whole),
        "busy_cores": round(busy_cores, 2),
    }


def figures(found: Prediction) -> dict[str, float]:
    """Return what virtual runs came to."""
    return {
        "predicted_s": round(found.run.predicted_s, 2),
        "error": round(found.run.error, 4),
        "worst_job_error": round(max((abs(w.error) for w in found.jobs.values()), default=0), 4),
        "moves_of_live": round(found.predicted_moves / max(1, found.moves), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["paced", "tight", "pipelined", "drained"])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = [measure(kind) for _ in range(args.rounds) for kind in args.kinds]
    for row in rows:
        print(json.dumps(row))
    told = {
        fit: max(abs(float(row[fit]["error"])) for row in rows)  # type: ignore[index]
        for fit in ("half", "whole")
    }
    is_identical = all(row["is_identical"] for row in rows)
    print(json.dumps({"worst_error": told, "target": TARGET, "is_identical": is_identical}))


if __name__ == "__main__":
    main()
