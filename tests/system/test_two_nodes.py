"""A group that spans nodes: ranks on both, one batch staged on each, weights from both."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

import plexclient as plex
from tests.rigs.live_cluster import (
    ROLLOUT,
    TRAIN,
    LiveCluster,
    rank_processes,
    start_cluster,
)
from tests.rigs.processes import is_alive
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

NODES = {"left": [TRAIN, ROLLOUT], "right": [TRAIN]}
PROMPT = [3, 4, 12, 5, 16]


STAGED = 800
"""Sequences of a batch that goes by the memory of both nodes."""


def train(
    job: plex.Job, name: str, model: Path, parallel: plex.Parallel, *, sequences: int = 6
) -> plex.Actor:
    actor = job.deploy(
        name,
        role="actor",
        model=str(model),
        backend="megatron",
        parallel=parallel,
        optimizer=plex.AdamW(lr=1e-2),
    )
    actor.forward_backward(fixed_batch(1), loss="ppo")
    actor.forward_backward(fixed_batch(4, sequences=sequences, longest=40), loss="ppo")
    actor.step()
    return actor


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with start_cluster(tmp_path_factory.mktemp("two"), nodes=NODES) as live:
        yield live


@pytest.mark.parametrize("layout", ["dp", "tp"])  # test_two_hosts has pp
def test_a_group_over_two_nodes_trains_and_delivers_like_one_rank(
    two_nodes: LiveCluster, tiny_model: Path, layout: str
) -> None:
    with two_nodes.connect() as connection, connection.job("two-nodes") as job:
        parallel = plex.Parallel(**cast("dict[str, Any]", {layout: 2}))
        spread = train(job, "spread", tiny_model, parallel, sequences=STAGED)
        single = train(job, "single", tiny_model, plex.Parallel(), sequences=STAGED)
        assert {block.node_id for block in spread.info.blocks} == {"left", "right"}
        batch = fixed_batch(2)
        far = np.abs(spread.forward(batch).logprobs - single.forward(batch).logprobs)
        assert far.max() <= 2e-4
        rollout = job.deploy("rollout", model=spread, backend="vllm", max_model_len=64)
        rollout.sync(spread)
        samples = rollout.generate([PROMPT], n=4, max_tokens=8, seed=0)
        sampled = plex.Batch.from_samples(samples, advantages=np.zeros(4))
        gap = np.abs(spread.forward(sampled).logprobs - sampled.logprobs)[sampled.mask > 0]
        assert gap.max() <= 1e-3


def tensors_of(directory: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for file in directory.glob("*.safetensors"):
        found |= {name: array.tobytes() for name, array in load_file(file).items()}
    return found


@pytest.mark.parametrize("layout", ["pp", "tp"])
def test_each_node_writes_its_part_of_a_save(
    two_nodes: LiveCluster, tiny_model: Path, tmp_path: Path, layout: str
) -> None:
    parallel = plex.Parallel(**cast("dict[str, Any]", {layout: 2}))
    with two_nodes.connect() as connection, connection.job("saves") as job:
        spread = train(job, "spread", tiny_model, parallel)
        expected = spread.digest()
        spread.save(tmp_path / "saved")
        single = train(job, "single", tiny_model, plex.Parallel())
        single.load(tmp_path / "saved", optimizer=True)
        assert single.digest() == expected
        single.save(tmp_path / "by-one")
        assert tensors_of(tmp_path / "saved") == tensors_of(tmp_path / "by-one")
        spread.export(tmp_path / "exported")
        assert sorted(path.name for path in (tmp_path / "exported").glob("model*")) == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ]
        read = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").state_dict()
        one = tensors_of(tmp_path / "by-one")
        names = one.keys() & read.keys()
        assert names >= load_file(tiny_model / "model.safetensors").keys()
        assert all(read[name].numpy().tobytes() == one[name] for name in names)
        (*_, damaged) = sorted((tmp_path / "saved").glob("model*.safetensors"))
        with damaged.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            (last,) = file.read()
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        with pytest.raises(plex.PlexError, match=rf"checkpoint_damaged.*{damaged.name}"):
            single.load(tmp_path / "saved", optimizer=True)


def test_a_version_outlives_a_node_whose_part_another_has(
    two_nodes: LiveCluster, tiny_model: Path
) -> None:
    live = two_nodes  # which loses a node: the last test here
    with live.connect() as connection, connection.job("left-over") as job:
        spread = train(job, "spread", tiny_model, plex.Parallel(dp=2))
        rollout = job.deploy("rollout", model=spread, backend="vllm", max_model_len=64)
        version = rollout.sync(spread)
        before = rollout.generate([PROMPT], n=1, max_tokens=8, seed=0)
        nodes = [block.node_id for block in spread.info.blocks]
        rank = rank_processes(live, [spread.deployment_id])[nodes.index("right")]
        os.kill(_agent_of(rank), signal.SIGKILL)
        wait_until(
            lambda: _state_of(live, spread) == "failed",
            what="the node is lost, and training that was there",
        )
        (instance,) = rank_processes(live, [rollout.deployment_id])
        os.kill(instance, signal.SIGKILL)
        wait_until(lambda: not is_alive(instance), what="the instance is gone")
        after = rollout.generate([PROMPT], n=1, max_tokens=8, seed=0)
        assert after[0].tokens == before[0].tokens
        assert set(after[0].versions) == {version}


def _state_of(live: LiveCluster, actor: plex.Actor) -> str:
    states = {one.deployment_id: one.state for one in live.status().deployments}
    return states[actor.deployment_id]


def _agent_of(rank: int) -> int:
    """Return the node agent, whose child every rank is."""
    stat = Path(f"/proc/{rank}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
