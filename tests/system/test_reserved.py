"""A job samples on its training devices for a window, beside an instance that it has for itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import (
    MIB,
    ROLLOUT,
    LiveCluster,
    rank_processes,
    start_cluster,
)
from tests.rigs.processes import managers
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4, 12, 5, 16], [7, 8, 9], [5, 6], [11, 12, 13, 14]]
OPTIONS = plex.SamplingOptions(n=16, max_tokens=400, temperature=1.0, seed=7, min_tokens=8)
MANY = plex.SamplingOptions(n=48, max_tokens=400, temperature=1.0, seed=7, min_tokens=8)
"""So many that engines join while they are generated, on a busy machine too."""
STEPS, PARTS = 3, 8
BESIDE = plex.Elastic(reserved=True, dedicated=1)

Tokens = dict[tuple[int, int], list[int]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Two nodes with one device of each kind; training and an engine do not fit into one."""
    devices = [f'{{ kind = "train", bytes_total = {1024 * MIB} }}', ROLLOUT]
    nodes = {"node-a": devices, "node-b": devices}
    extra = "rollout = { balance_us = 20_000 }\n"  # windows of these steps are short
    with start_cluster(tmp_path_factory.mktemp("pair"), nodes=nodes, extra=extra) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(pair: LiveCluster, tiny_model: Path) -> list[Tokens]:
    """The tokens of a job with an instance of its own; windows are learned over some steps."""
    with pair.connect() as connection, connection.job("alone") as job:
        return learn(*deploy(job, tiny_model, instances=1), steps=range(2 * STEPS))


def deploy(
    job: plex.Job, model: Path, *, instances: int | plex.Elastic
) -> tuple[plex.Actor, plex.Rollout]:
    asked = plex.Declared(
        "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2), seed=1
    )
    actor, rollout = job.deploy_all(
        asked,
        plex.Declared(
            "rollout", model=asked, backend="vllm", instances=instances, max_model_len=512
        ),
    )
    return actor, rollout


def learn(
    actor: plex.Actor,
    rollout: plex.Rollout,
    *,
    steps: range = range(STEPS),
    options: plex.SamplingOptions = OPTIONS,
) -> list[Tokens]:
    """Return the tokens of each step of a loop that trains while the rest is generated."""
    found = []
    for number in steps:
        version = rollout.sync(actor)
        tokens: Tokens = {}
        for batch in rollout.generate.micro_batches(PROMPTS, min_samples=8, **options):
            if not tokens:  # the same training, whatever finishes first
                for part in range(PARTS):
                    given = fixed_batch(PARTS * number + part, sequences=24, longest=200)
                    actor.forward_backward.submit(given, loss="ppo")
            assert {v for one in batch for v in one.versions} == {version}
            tokens |= {(one.prompt_index, one.sample_index): one.tokens for one in batch}
        actor.step()
        found.append(tokens)
    return found


def node_of(cluster: LiveCluster, engine: str) -> str:
    """Return the node on which the engine on a training device lives."""
    (device,) = [d for d, view in cluster.instances().items() if view.deployment_id == engine]
    return device.rpartition(":")[0]


def until_serving(cluster: LiveCluster, deployment_id: str) -> None:
    """Return when the engine on the training device is in the window."""

    def serves() -> bool:
        views = cluster.instances().values()
        (view,) = [v for v in views if v.deployment_id == deployment_id]
        assert view.kind == "reserved"
        return view.phase == "serving"

    wait_until(serves, what=f"{deployment_id} serves in the window")


def test_training_devices_sample_for_a_window_and_train_while_the_tail_is_generated(
    pair: LiveCluster, tiny_model: Path, alone: list[Tokens]
) -> None:
    with pair.connect() as connection, connection.job("seeded") as job:
        actor, rollout = deploy(job, tiny_model, instances=BESIDE)
        assert learn(actor, rollout, steps=range(len(alone))) == alone
        spans = pair.timeline()
    own = [s for s in spans if s.job_id == job.job_id]
    assert len([s for s in own if s.kind == "seed"]) == len(alone)
    generates = [s for s in own if s.kind == "generate"]
    trained = [s for s in own if s.kind == "forward_backward"]
    beside = [t for t in trained for g in generates if g.start_us < t.start_us < g.end_us]
    assert beside, "training ran on the devices while the other instance generated"


@pytest.fixture(scope="module")
def undisturbed(pair: LiveCluster, tiny_model: Path) -> list[Tokens]:
    """The tokens of two steps of a job with an instance of its own."""
    with pair.connect() as connection, connection.job("alone") as job:
        return learn(*deploy(job, tiny_model, instances=1), steps=range(2), options=MANY)


@pytest.mark.every(3)  # the others are killed in `test_instances.py` and `test_managers.py`, too
@pytest.mark.parametrize("whose", ["reserved", "dedicated", "manager"])
def test_a_kill_in_the_window_changes_no_token(
    pair: LiveCluster, tiny_model: Path, undisturbed: list[Tokens], whose: str
) -> None:
    cluster = pair
    with (
        cluster.connect() as connection,
        connection.job("killed") as job,
        ThreadPoolExecutor(max_workers=1) as beside,
    ):
        actor, rollout = deploy(job, tiny_model, instances=BESIDE)

        def kill() -> None:  # in the first window, which lasts as long as the samples
            name = f"{rollout.deployment_id}-reserved"
            until_serving(cluster, name)
            if whose == "manager":
                pids = managers(below=cluster.pid)  # one of each node
            else:
                chosen = name if whose == "reserved" else rollout.deployment_id
                pids = rank_processes(cluster, [chosen])
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

        killed = beside.submit(kill)
        assert learn(actor, rollout, steps=range(2), options=MANY) == undisturbed
        killed.result()


def test_engines_follow_training_that_moves_and_the_tokens_stay_the_same(
    pair: LiveCluster, tiny_model: Path, alone: list[Tokens]
) -> None:
    with pair.connect() as connection, connection.job("moved") as job:
        actor, rollout = deploy(job, tiny_model, instances=BESIDE)
        engine = f"{rollout.deployment_id}-reserved"
        found = learn(actor, rollout, steps=range(2))
        before = node_of(pair, engine)
        pair.move_job(job.job_id)
        wait_until(lambda: node_of(pair, engine) != before, what="it follows")
        found += learn(actor, rollout, steps=range(2, STEPS))
        spans = [s for s in pair.timeline() if s.job_id == job.job_id]
    assert found == alone[:STEPS]
    for kind in ("seed", "forward_backward"):
        assert {s.node_id for s in spans if s.kind == kind} == {"node-a", "node-b"}
