"""A rollout over several tensor ranks, through the whole service."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.live_cluster import MIB, ROLLOUT, TRAIN, LiveCluster, rank_processes, start_cluster
from tests.rigs.processes import command_of, descendants, is_alive
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

WIDE = f'{{ kind = "rollout", tp = 2, bytes_total = {1024 * MIB} }}'
PROMPTS = [[3, 4, 12, 5, 16], [7, 8, 9]]
GREEDY = plex.SamplingOptions(n=1, max_tokens=40, temperature=0.0, ignore_eos=True)
DRAWN = plex.SamplingOptions(n=2, max_tokens=40, temperature=1.0, seed=7, ignore_eos=True)


def test_a_rollout_of_two_ranks_serves_what_one_rank_does_and_outlives_a_rank(
    tmp_path: Path,
) -> None:
    model, before = make_qwen3(tmp_path / "model", seed=3), shared_names()
    with start_cluster(tmp_path, nodes={"node-a": [TRAIN, TRAIN, ROLLOUT, WIDE]}) as cluster:
        with cluster.connect() as connection, connection.job("wide") as job:
            actor = job.deploy(
                "actor",
                model=str(model),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-2),
                parallel=plex.Parallel(tp=2),
            )
            wide = job.deploy(
                "wide", model=actor, backend="vllm", parallel=plex.Parallel(tp=2), max_model_len=128
            )
            with connection.job("narrow") as other:
                narrow = other.deploy("narrow", model=str(model), backend="vllm", max_model_len=128)
                agree(wide.generate(PROMPTS, **DRAWN), narrow.generate(PROMPTS, **DRAWN))
            narrow = job.deploy("narrow", model=actor, backend="vllm", max_model_len=128)
            actor.forward_backward(fixed_batch(1), loss="ppo")
            actor.step()
            version = wide.sync(actor)
            assert narrow.sync(actor) == version
            for options in (GREEDY, DRAWN):
                agree(wide.generate(PROMPTS, **options), narrow.generate(PROMPTS, **options))
            started = kill_a_rank(cluster, wide)
            again = wide.generate(PROMPTS, **DRAWN)
            assert {v for one in again for v in one.versions} == {version}
            agree(again, narrow.generate(PROMPTS, **DRAWN))
            refuses(job, actor)
        started |= set(descendants(cluster.pid))
    wait_until(lambda: not any(map(is_alive, started)), what="all processes have ended")
    assert shared_names() == before


def agree(found: Sequence[plex.Sample], expected: Sequence[plex.Sample]) -> None:
    """Check that tokens are equal and logprobs alike."""
    ones, others = (
        sorted(samples, key=lambda one: (one.prompt_index, one.sample_index))
        for samples in (found, expected)
    )
    assert [one.tokens for one in ones] == [one.tokens for one in others]
    for one, other in zip(ones, others, strict=True):
        assert np.abs(np.array(one.logprobs) - np.array(other.logprobs)).max() <= 1e-3


def kill_a_rank(cluster: LiveCluster, wide: plex.Rollout) -> set[int]:
    """Kill a rank; return the processes of the instance when all are gone."""
    (engine,) = rank_processes(cluster, [wide.deployment_id])
    started = set(descendants(engine))
    ranks = [pid for pid in started if "tracker" not in str(command_of(pid))]
    assert len(ranks) == 2
    os.kill(ranks[0], signal.SIGKILL)
    wait_until(
        lambda: not any(map(is_alive, {engine, *started})), what="the instance and its ranks ended"
    )
    return started


def refuses(job: plex.Job, actor: plex.Actor) -> None:
    """Check what is refused: a degree without a device, elastic instances, one that sleeps."""
    asked: list[tuple[dict[str, Any], str, str]] = [
        ({"parallel": plex.Parallel(tp=4)}, "no_placement", "tp = 4; no node has a device"),
        ({"parallel": plex.Parallel(pp=2)}, "bad_request", "it splits over tp"),
        ({"instances": plex.Elastic(shared=True)}, "bad_request", "that share devices"),
        ({"instances": plex.Elastic(dedicated=1, spot=(0, 1))}, "bad_request", "of kind"),
    ]
    for given, code, text in asked:
        more = {"parallel": plex.Parallel(tp=2), **given}
        with pytest.raises(plex.PlexError, match=text) as told:
            job.deploy("refused", model=actor, backend="vllm", **more)
        assert told.value.code == code


def shared_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "vllm_dist_"))}
