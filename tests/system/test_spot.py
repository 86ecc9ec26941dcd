"""Spot instances on real engines: killed at any token, they cost a job no token and no sample."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import plexclient as plex
from tests.rigs.another_node import another_node
from tests.rigs.commands import plexctl
from tests.rigs.live_cluster import (
    ROLLOUT,
    SHARES_ALL,
    LiveCluster,
    processes,
    start_cluster,
)
from tests.rigs.spot_cluster import (
    PROMPTS,
    SPOT,
    change_instance,
    generate_under_kills,
    instances,
    tokens,
    wait_until_serving,
)
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

LENGTH = 200
OPTIONS = plex.SamplingOptions(n=2, max_tokens=LENGTH, temperature=1.0, seed=7, ignore_eos=True)
KILLS = int(os.environ.get("PLEX_CHAOS_KILLS") or 2)  # noqa: TID251 - of `make chaos`


@pytest.fixture(scope="module")
def spot_cluster(
    cluster: LiveCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    """The cluster, and a node with two spot devices beside it until the last test here."""
    place, devices = tmp_path_factory.mktemp("spot"), f"{SPOT}, {SPOT}"

    def are_there() -> bool:
        return ("spot-a", "up") in {(node.node_id, node.state) for node in cluster.status().nodes}

    with another_node(cluster, place, node_id="spot-a", device=devices) as address:
        plexctl("node", "add", address, "--state-dir", str(cluster.state_dir))
        wait_until(are_there, what="the node is up")
        yield cluster
    wait_until(lambda: not are_there(), what="the node is lost")
    list(processes(cluster))  # tests after these ask it of the nodes that are left


def test_kills_of_spot_instances_at_any_token_change_no_token(
    spot_cluster: LiveCluster, tiny_model: Path
) -> None:
    dice = random.Random(11)
    with spot_cluster.connect() as connection, connection.job("killed") as job:
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy(
            "rollout",
            model=actor,
            backend="vllm",
            max_model_len=512,
            instances=plex.Elastic(dedicated=1, spot=(0, 2)),
        )
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        version = rollout.sync(actor)
        undisturbed = tokens(rollout.generate(PROMPTS, **OPTIONS))
        kills, differing = 0, 0
        while kills < KILLS:
            wait_until_serving(spot_cluster, rollout, 2)
            done = generate_under_kills(spot_cluster, rollout, OPTIONS, kills=2, dice=dice)
            kills, samples, seen = kills + done.kills, done.samples, done.seen
            assert done.repeated == 0, "each position once"
            assert tokens(samples) == [seen[key] for key in sorted(seen)], "no token changed"
            assert all(len(one.tokens) == LENGTH for one in samples)
            assert {v for one in samples for v in one.versions} == {version}
            found = tokens(samples)
            differing += sum(a != b for a, b in zip(found, undisturbed, strict=True))
        assert differing == 0, f"{differing} samples differ"


def test_two_jobs_share_spot_devices_and_a_drained_one_is_left_alone_until_it_is_opened(
    spot_cluster: LiveCluster, tiny_model: Path
) -> None:
    with (
        spot_cluster.connect() as connection,
        connection.job("one") as one,
        connection.job("two") as two,
    ):
        rollouts = [
            job.deploy(
                "rollout",
                model=tiny_model,
                backend="vllm",
                max_model_len=512,
                instances=plex.Elastic(spot=(0, 2)),
            )
            for job in (one, two)
        ]
        wait_until(
            lambda: (
                {
                    view["deployment_id"]
                    for view in instances(spot_cluster)
                    if view["kind"] == "spot" and view.get("phase") == "serving"
                }
                == {rollout.deployment_id for rollout in rollouts}
            ),
            what="each job has a spot instance",
            timeout_s=120,
        )
        expected = [tokens(rollout.generate(PROMPTS, **OPTIONS)) for rollout in rollouts]
        assert expected[0] == expected[1]
        under_way = [rollout.generate.submit(PROMPTS, **OPTIONS) for rollout in rollouts]
        change_instance(spot_cluster, "drain", "spot-a:0")
        done = [future.result() for future in under_way]
        assert [tokens(samples) for samples in done] == expected
        assert [samples.metrics["instances_lost"] for samples in done] == [0, 0]
        (left,) = [v for v in instances(spot_cluster) if v["device"] == "spot-a:0"]
        assert left["phase"] in {"closed", "stopping"}
        change_instance(spot_cluster, "open", "spot-a:0")
        wait_until(
            lambda: (
                {"serving"}
                == {v.get("phase") for v in instances(spot_cluster) if v["kind"] == "spot"}
            ),
            what="the device that was opened serves again",
        )


def test_micro_batches_give_the_gradient_of_the_whole(
    spot_cluster: LiveCluster, tiny_model: Path
) -> None:
    def batch_of(samples: Sequence[plex.Sample]) -> plex.Batch:
        advantages = [1.0 + one.prompt_index - 2 * one.sample_index for one in samples]
        return plex.Batch.from_samples(plex.Samples(samples, metrics={}), advantages=advantages)

    with spot_cluster.connect() as connection, connection.job("batches") as job:
        rollout = job.deploy("rollout", model=tiny_model, backend="vllm", max_model_len=512)
        batches = list(rollout.generate.micro_batches(PROMPTS, min_samples=3, **OPTIONS))
        samples = [sample for batch in batches for sample in batch]
        assert len({(one.prompt_index, one.sample_index) for one in samples}) == len(samples) == 8
        found = []
        for name, parts in (("parts", batches), ("whole", [samples])):
            actor = job.deploy(
                name,
                role="actor",
                model=str(tiny_model),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-2, eps=1.0),  # a step in proportion to the gradient
            )
            for part in parts:
                actor.forward_backward(batch_of(part), loss="ppo")
            actor.step()
            found.append(actor.forward(batch_of(samples)).logprobs)
        assert np.abs(found[0] - found[1]).max() < 1e-5


def test_a_job_samples_on_while_a_trace_takes_its_spot_devices(
    tmp_path: Path, tiny_model: Path
) -> None:
    trace = tmp_path / "trace.csv"
    rows = [(0, "add", "n0;n1")]
    for turn in range(40):  # one goes and another comes, every minute
        at_ms = 60_000 * (turn + 1)
        rows += [(at_ms, "remove", f"n{turn}"), (at_ms + 5_000, "add", f"n{turn + 2}")]
    lines = [f"short,{at_ms},{event},{nodes}" for at_ms, event, nodes in rows]
    trace.write_text("\n".join(["segment,t_ms,event,nodes", *lines, ""]))
    settings = f'[rollout.spot]\ntrace = "{trace}"\nsegment = "short"\nscale = 4.0\n'
    settings += "notice_us = 30_000_000\n"
    with (
        start_cluster(
            tmp_path,
            nodes={"spot-a": [ROLLOUT, SPOT, SPOT]},
            scheduler=f"{SHARES_ALL}\n{settings}",
        ) as cluster,
        cluster.connect() as connection,
        connection.job("traced") as job,
    ):
        rollout = job.deploy(
            "rollout",
            model=tiny_model,
            backend="vllm",
            max_model_len=512,
            instances=plex.Elastic(spot=(0, 2)),
        )
        expected = tokens(rollout.generate(PROMPTS, **OPTIONS))
        removed, drained = 0, False
        # An engine that comes up as late as it is taken back is not drained, but ended.
        while removed < 2 or not drained:
            assert tokens(rollout.generate(PROMPTS, **OPTIONS)) == expected
            removed = (tmp_path / "up.log").read_text().count("event=remove")
            logs = cluster.state_dir.glob("nodes/*/logs/manager-0-*.log")
            drained = any("instance drained" in log.read_text() for log in logs)
