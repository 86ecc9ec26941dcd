"""The node of a rollout manager is killed: another node goes on from the copies of its records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import plexclient as plex
from plexsvc.rollout.managers import Managers
from plexsvc.scheduler.config import SchedulerConfig
from tests.fakes.fake_rollout import STUCK, STUCK_UNTIL
from tests.rigs.inner_cluster import InnerCluster, node
from tests.rigs.long_answers import make_long_model, start_with_fake_engines
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3, 4]]
OPTIONS = plex.SamplingOptions(n=16, max_tokens=14_000, temperature=1.0, seed=3, ignore_eos=True)
NODES = tuple(node(name, train=0, rollout=1) for name in ("left", "right"))


def tokens(samples: Iterable[plex.Sample]) -> list[list[int]]:
    return [one.tokens for one in sorted(samples, key=lambda one: one.sample_index)]


def records(cluster: InnerCluster, node_id: str, *, below: str = "") -> list[Path]:
    """Return the files of token records on a node."""
    place = cluster.state_dir / "nodes" / node_id / "logs" / "records-0" / below
    return [path for path in place.rglob("*") if path.is_file()]


def led_on(cluster: InnerCluster, rollout: plex.Rollout) -> str:
    """Return the node whose manager leads a deployment."""
    managers = cluster.driver.rollout
    assert isinstance(managers, Managers)
    return managers._deployments[rollout.deployment_id].link.node_id


def test_a_generate_and_an_answer_outlive_the_node_of_their_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent is missed after 2 s."""
    goes_on = tmp_path / "goes-on"
    monkeypatch.setenv(STUCK_UNTIL, str(goes_on))
    model = str(make_long_model(tmp_path))
    config = SchedulerConfig(node_lease_us=2_000_000)
    with (
        start_with_fake_engines(tmp_path, nodes=NODES, scheduler=config) as cluster,
        cluster.connect() as connection,
    ):
        with connection.job("moved") as job:
            rollout = job.deploy("rollout", model=model, backend="vllm", max_model_len=15_000)
            (home,) = {place for place, _ in cluster.places(rollout)}
            other = "right" if home == "left" else "left"
            assert led_on(cluster, rollout) == home
            expected = tokens(rollout.generate(PROMPTS, **OPTIONS))

            def is_copied() -> bool:
                rollout.generate(PROMPTS, n=1, max_tokens=1)
                return bool(records(cluster, other, below="copies"))

            wait_until(is_copied, what="another node has copies", timeout_s=60)
            unread = rollout.generate.deltas(PROMPTS, **OPTIONS)
            rollout.generate(PROMPTS, n=1, max_tokens=1)  # then the one before has been answered
            finished, is_killed = list[plex.Sample](), False
            for delta in rollout.generate.deltas([[STUCK, 4]], **OPTIONS):
                if not is_killed:
                    is_killed = True
                    cluster.take_power(home)
                    goes_on.touch()
                finished += [delta.sample] if delta.sample is not None else []
            assert tokens(finished) == expected
            assert led_on(cluster, rollout) == other
            answered = [delta.sample for delta in unread if delta.sample is not None]
            assert tokens(answered) == expected
        wait_until(lambda: not records(cluster, other), what="no record is left", timeout_s=60)
