"""Two synchronous jobs alternate on one rollout device and one training device."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import (
    MIB,
    ROLLOUT,
    TRAIN,
    LiveCluster,
    rank_processes,
    start_cluster,
)
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4, 12, 5, 16], [7, 8, 9]]
OPTIONS = plex.SamplingOptions(n=2, max_tokens=64, temperature=1.0, seed=7, ignore_eos=True)
STEPS = 4


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster with one device of each kind."""
    place = tmp_path_factory.mktemp("each")
    with start_cluster(place, nodes={"node-a": [TRAIN, ROLLOUT]}) as cluster:
        yield cluster


def deploy(
    job: plex.Job,
    model: Path,
    *,
    seed: int,
    instances: plex.Elastic = plex.Elastic(shared=True),  # noqa: B008 - frozen
) -> tuple[plex.Actor, plex.Rollout]:
    actor = job.deploy(
        "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2), seed=seed
    )
    rollout = job.deploy(
        "rollout",
        model=actor,
        backend="vllm",
        instances=instances,
        max_model_len=512,
    )
    return actor, rollout


def learn(
    actor: plex.Actor, rollout: plex.Rollout, *, steps: int = STEPS, batch: int
) -> list[list[list[int]]]:
    """Return the tokens of each step of a synchronous loop."""
    found = []
    for number in range(steps):
        actor.forward_backward(fixed_batch(batch + number), loss="ppo")
        actor.step()
        version = rollout.sync(actor)
        samples = rollout.generate(PROMPTS, **OPTIONS)
        assert {v for one in samples for v in one.versions} == {version}
        ordered = sorted(samples, key=lambda one: (one.prompt_index, one.sample_index))
        found.append([one.tokens for one in ordered])
    return found


def both(
    cluster: LiveCluster, model: Path, *, at_once: bool = True, kills: bool = False
) -> dict[str, object]:
    """Return the tokens of two jobs."""
    found: dict[str, object] = {}
    with cluster.connect() as connection:

        def run(name: str, batch: int) -> None:
            with connection.job(name) as job:
                actor, rollout = deploy(job, model, seed=batch)
                first = learn(actor, rollout, steps=STEPS // 2, batch=batch)
                if kills:
                    (pid,) = rank_processes(cluster, [rollout.deployment_id])
                    os.kill(pid, signal.SIGKILL)  # asleep, or between two generates
                rest = learn(actor, rollout, steps=STEPS // 2, batch=batch + STEPS)
                found[name] = first + rest

        threads = [
            threading.Thread(target=run, args=each, daemon=True) for each in (("a", 1), ("b", 20))
        ]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join(240)
        for thread in threads:
            thread.join(240)
    assert sorted(found) == ["a", "b"]
    return found


@pytest.fixture(scope="module")
def alone(one_of_each: LiveCluster, tiny_model: Path) -> dict[str, object]:
    return both(one_of_each, tiny_model, at_once=False)


def test_two_jobs_on_one_pool_get_the_tokens_that_they_get_alone(
    one_of_each: LiveCluster, tiny_model: Path, alone: dict[str, object]
) -> None:
    assert both(one_of_each, tiny_model) == alone


def test_jobs_go_on_when_their_engines_are_killed_asleep_or_awake(
    one_of_each: LiveCluster, tiny_model: Path, alone: dict[str, object]
) -> None:
    assert both(one_of_each, tiny_model, kills=True) == alone


def test_a_job_generates_on_a_node_that_only_trains_with_the_same_tokens(
    tmp_path: Path, tiny_model: Path, alone: dict[str, object]
) -> None:
    """Such a node starts engines when a job asks for them."""
    nodes = {"node-a": [f'{{ kind = "train", bytes_total = {1024 * MIB} }}']}
    with (
        start_cluster(tmp_path, nodes=nodes) as cluster,
        cluster.connect() as connection,
        connection.job("reserved") as job,
    ):
        actor, rollout = deploy(job, tiny_model, seed=1, instances=plex.Elastic(reserved=True))
        found = learn(actor, rollout, steps=STEPS // 2, batch=1)
        found += learn(actor, rollout, steps=STEPS // 2, batch=1 + STEPS)
        spans = {s.kind for s in cluster.timeline() if s.deployment_id == rollout.deployment_id}
    assert found == alone["a"]
    assert spans >= {"generate", "load", "offload"}


def test_engines_whose_caches_have_a_size_stay_awake_together_where_they_fit(
    one_of_each: LiveCluster, tiny_model: Path
) -> None:
    """Two of 200 MiB of cache and what they compute in fit into 1 GiB, a third does not."""
    cluster, before = one_of_each, len(one_of_each.timeline())
    with cluster.connect() as connection, ExitStack() as stack:

        def deploy(name: str) -> plex.Rollout:
            rollout: plex.Rollout = stack.enter_context(connection.job(name)).deploy(
                "rollout",
                model=str(tiny_model),
                backend="vllm",
                instances=plex.Elastic(shared=True),
                max_model_len=512,
                kv_cache_bytes=200 * MIB,
            )
            return rollout

        def sampled(rollout: plex.Rollout) -> list[list[int]]:
            return [one.tokens for one in rollout.generate(PROMPTS, **OPTIONS)]

        def switches() -> int:
            return sum(span.kind in {"load", "offload"} for span in cluster.timeline()[before:])

        both = [deploy("one"), deploy("two")]
        first = [sampled(rollout) for rollout in both]
        assert [sampled(rollout) for rollout in both * 2] == first * 2
        assert (cluster.phases(), switches()) == (["serving", "serving"], 0)
        (pid,) = rank_processes(cluster, [both[0].deployment_id])
        os.kill(pid, signal.SIGKILL)  # awake, and nothing of it runs
        assert [sampled(rollout) for rollout in both[::-1]] == first[::-1]
        assert switches() == 0
        third = deploy("three")
        assert sampled(third) == first[0]
        assert cluster.phases() == ["asleep", "serving", "serving"]
        assert [sampled(rollout) for rollout in (*both, third)] == [*first, first[0]]
        assert switches() > 0


def test_an_engine_that_no_device_has_room_for_is_refused_and_leaves_nothing(
    one_of_each: LiveCluster, tiny_model: Path
) -> None:
    with one_of_each.connect() as connection, connection.job("large") as job:
        for _ in range(2):  # the name is free again
            with pytest.raises(plex.PlexError, match="ask for a smaller kv_cache_bytes") as refused:
                job.deploy(
                    "rollout",
                    model=str(tiny_model),
                    backend="vllm",
                    instances=plex.Elastic(shared=True),
                    kv_cache_bytes=1000 * MIB,
                )
            assert refused.value.code == "no_placement"
        rollout = job.deploy(
            "rollout", model=str(tiny_model), backend="vllm", instances=plex.Elastic(shared=True)
        )
        assert len(rollout.generate(PROMPTS, **OPTIONS)) == 4


def rounds(job: plex.Job, model: Path, *, count: int) -> str:
    """Run some cycles of a synchronous job; return the id of its rollout."""
    actor, rollout = deploy(job, model, seed=1)
    for number in range(count):
        actor.forward_backward(fixed_batch(number), loss="ppo")
        actor.step()
        rollout.sync(actor)
        rollout.generate(PROMPTS, n=2, max_tokens=200, ignore_eos=True, seed=number)
    return rollout.deployment_id


def test_jobs_of_known_cycles_share_a_device_only_where_that_keeps_their_bound(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Nearly all of a cycle is spent generating, so two such jobs slow each other down."""
    bounds = "[scheduler]\nmax_slowdown_ppm = 100_000_000\n"
    nodes = {"node-a": [TRAIN, TRAIN, ROLLOUT, ROLLOUT]}
    with (
        start_cluster(tmp_path, nodes=nodes, scheduler=bounds) as cluster,
        cluster.connect() as connection,
    ):
        for name in ("one", "two"):
            with connection.job(name) as job:
                rounds(job, tiny_model, count=4)
        for bound, is_shared in ((1.2, False), (0.0, True)):
            with (
                connection.job("one", max_slowdown=bound) as one,
                connection.job("two", max_slowdown=bound) as two,
            ):
                there = [rounds(job, tiny_model, count=1) for job in (one, two)]
                spans = cluster.timeline()
            devices = [{s.device for s in spans if s.deployment_id == name} for name in there]
            assert all(devices)
            assert devices[0].isdisjoint(devices[1]) != is_shared
