"""The demo of spot instances: its trace, its figures and what must hold."""

from __future__ import annotations

import pytest

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.spot import (
    DEVICES,
    SCALE,
    TRACE,
    SpotPoint,
    checks,
    spot_figures,
    spot_point,
)
from plexsvc.rollout.providers.trace import NodeChange, read_trace
from tests.rigs.demo_runs import RISING, make_run

SECOND = 1_000_000


def points(*living: str) -> list[SpotPoint]:
    """One point a second, each with the devices named by its letters."""
    return [
        SpotPoint(
            at_us=SECOND * at, living=frozenset(names), serving=len(names), tokens_per_s=9.0 * at
        )
        for at, names in enumerate(living)
    ]


KILLED = points("", "a", "ab", "b", "bc", "", "d")


def test_the_trace_kills_often_enough_and_its_nodes_fit_the_devices() -> None:
    there, most, kills = 0, 0, 0
    for change in read_trace(TRACE):
        assert isinstance(change, NodeChange)
        there += 1 if change.is_add else -1
        most = max(most, there)
        kills += not change.is_add and change.at_us / SCALE < 120_000_000
    assert most == DEVICES
    assert kills >= 6


def test_instances_that_go_are_counted_once_each() -> None:
    figures = spot_figures(KILLED)
    assert (figures["kills"], figures["most_serving"]) == (3, 2)
    assert spot_figures([])["mean_serving"] == 0


@pytest.mark.parametrize(
    ("seen", "rewards", "names"),
    [
        (KILLED, RISING, []),
        (points("a", "a", "a"), RISING, ["kills"]),
        (KILLED, [x + 0.03 for x in RISING], ["rewards of bits"]),
    ],
)
def test_what_must_hold_is_checked(
    seen: list[SpotPoint], rewards: list[float], names: list[str]
) -> None:
    without, run = (make_run("bits", rewards=values) for values in (RISING, rewards))
    made = checks(spot_figures(seen), without=[without], runs=[run])
    assert [check.name for check in made if not check.passed] == names


def test_a_point_counts_what_takes_part_and_not_what_is_free_or_drained() -> None:
    views = [("a", "serving"), ("b", "joining"), ("c", "free"), ("d", "draining")]
    reply = service_pb2.ListInstancesReply(
        instances=[
            service_pb2.InstanceView(device=device, kind="spot", phase=phase, tokens_per_s=5)
            for device, phase in views
        ]
        + [service_pb2.InstanceView(device="e", kind="dedicated", phase="serving")]
    )
    assert spot_point(7, reply) == SpotPoint(
        at_us=7, living=frozenset("ab"), serving=1, tokens_per_s=10
    )
