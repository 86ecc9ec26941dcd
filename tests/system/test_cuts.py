"""Instances that a generate leaves before its end, on real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import ROLLOUT, SHARES_ALL, start_cluster

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]

CUTS = "[rollout]\ncuts_at = 0.5\nbalance_us = 50_000\n"
PROMPTS = [[3 + number, 4, 12, 5] for number in range(8)]
OPTIONS = plex.SamplingOptions(max_tokens=400, seed=7, ignore_eos=True, stop_token_ids=[2, 3])


def test_tokens_are_the_same_where_an_instance_is_cut(tmp_path: Path, tiny_model: Path) -> None:
    nodes = {"node-a": [ROLLOUT] * 3}
    with (
        start_cluster(tmp_path, nodes=nodes, scheduler=SHARES_ALL + CUTS) as cluster,
        cluster.connect() as connection,
        connection.job("cuts") as job,
    ):
        rollouts = [
            job.deploy(
                f"rollout-{instances}",
                model=str(tiny_model),
                backend="vllm",
                instances=instances,
                max_model_len=512,
            )
            for instances in (1, 2)
        ]
        alone, cut = (rollout.generate(PROMPTS, **OPTIONS) for rollout in rollouts)
    assert [one.tokens for one in alone] == [one.tokens for one in cut]
    took_s = cut.num_tokens / cut.metrics["tokens_per_s"]
    assert cut.metrics["instance_s"] < 2 * took_s, "one of the two was left before the end"
