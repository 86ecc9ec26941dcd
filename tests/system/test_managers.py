"""Kill -9 of rollout managers: jobs go on, and no token that a client was given changes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs import processes
from tests.rigs.live_cluster import (
    ROLLOUT,
    TRAIN,
    LiveCluster,
    start_cluster,
)
from tests.rigs.processes import is_alive
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4, 12, 5, 16], [7, 8, 9]]
OPTIONS = plex.SamplingOptions(n=2, max_tokens=400, temperature=1.0, seed=7, ignore_eos=True)
KILLS = 6


@pytest.fixture(scope="module")
def two_managers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    nodes = {"only": [TRAIN, ROLLOUT, ROLLOUT]}
    place = tmp_path_factory.mktemp("managers")
    with start_cluster(place, nodes=nodes, extra="rollout.managers = 2\n") as live:
        yield live


def tokens(samples: Sequence[plex.Sample]) -> list[list[int]]:
    ordered = sorted(samples, key=lambda one: (one.prompt_index, one.sample_index))
    return [one.tokens for one in ordered]


def managers(cluster: LiveCluster) -> list[int]:
    return processes.managers(below=cluster.pid)


def kill_all(cluster: LiveCluster) -> None:
    for pid in managers(cluster):
        os.kill(pid, signal.SIGKILL)


def test_jobs_go_on_when_their_managers_are_killed(
    two_managers: LiveCluster, tiny_model: Path, every: Callable[[int], int]
) -> None:
    cluster = two_managers
    with cluster.connect() as connection, connection.job("kept") as job:
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=512)
        with connection.job("beside") as other:
            beside = other.deploy("rollout", model=tiny_model, backend="vllm", max_model_len=512)
            assert len(managers(cluster)) == 2
            told = {d.deployment_id: d.executor_address for d in cluster.status().deployments}
            assert told[rollout.deployment_id] != told[beside.deployment_id], "spread over both"
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        version = rollout.sync(actor)
        undisturbed = tokens(rollout.generate(PROMPTS, **OPTIONS))
        dice = random.Random(5)
        for kill in range(0, KILLS, every(3)):
            at = dice.randrange(1, 1200)
            seen: dict[tuple[int, int], list[int]] = {}
            finished: list[plex.Sample] = []
            count, has_killed = 0, False
            for delta in rollout.generate.deltas(PROMPTS, **OPTIONS):
                key = (delta.prompt_index, delta.sample_index)
                assert delta.position == len(seen.setdefault(key, [])), "each position once"
                seen[key].extend(delta.tokens)
                count += len(delta.tokens)
                if not has_killed and count >= at:
                    has_killed = True
                    kill_all(cluster)
                if delta.sample is not None:
                    finished.append(delta.sample)
            assert has_killed, (kill, at)
            assert tokens(finished) == undisturbed
            assert [seen[key] for key in sorted(seen)] == undisturbed
            assert {v for one in finished for v in one.versions} == {version}
        before = managers(cluster)
        batches: list[plex.Sample] = []
        for batch in rollout.generate.micro_batches(PROMPTS, min_samples=1, **OPTIONS):
            if not batches:
                kill_all(cluster)
            batches += list(batch)
        assert tokens(batches) == undisturbed
        wait_until(
            lambda: len([pid for pid in managers(cluster) if pid not in before]) == 2,
            what="both managers are started again",
        )
        assert rollout.sync(actor) == version
        assert tokens(rollout.generate(PROMPTS, **OPTIONS)) == undisturbed


def test_a_manager_that_hangs_is_replaced(two_managers: LiveCluster, tiny_model: Path) -> None:
    cluster = two_managers
    with cluster.connect() as connection, connection.job("hung") as job:
        rollout = job.deploy("rollout", model=tiny_model, backend="vllm", max_model_len=512)
        undisturbed = tokens(rollout.generate(PROMPTS, **OPTIONS))
        stopped: list[int] = []
        finished: list[plex.Sample] = []
        for delta in rollout.generate.deltas(PROMPTS, **OPTIONS):
            if not stopped:
                stopped = managers(cluster)
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
            if delta.sample is not None:
                finished.append(delta.sample)
        assert tokens(finished) == undisturbed
        assert not any(is_alive(pid) for pid in stopped)


def test_scored_samples_and_a_cancelled_generate_outlive_their_manager(
    two_managers: LiveCluster, tiny_model: Path
) -> None:
    cluster = two_managers
    with cluster.connect() as connection, connection.job("scored") as job:
        rollout = job.deploy("rollout", model=tiny_model, backend="vllm", max_model_len=512)
        undisturbed = rollout.generate(PROMPTS, text=True, **OPTIONS)
        references = [one.text for one in undisturbed[::2]]  # of the first sample of each prompt
        future = rollout.generate.submit(PROMPTS, score="exact", references=references, **OPTIONS)
        kill_all(cluster)
        samples = future.result(120)
        assert tokens(samples) == tokens(undisturbed)
        assert [score.value for score in samples.scores] == [1.0, 0.0, 1.0, 0.0]

        stream = rollout.generate.deltas(PROMPTS * 8, **OPTIONS)
        next(stream)
        kill_all(cluster)
        stream.cancel()
        with pytest.raises(plex.PlexError) as caught:
            list(stream)
        assert caught.value.code == "cancelled"
        assert tokens(rollout.generate(PROMPTS, **OPTIONS)) == tokens(undisturbed)
