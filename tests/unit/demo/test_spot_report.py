"""Figures and checks of the demo of spot instances: what must fail does."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2
from plexsvc.demo import plots
from plexsvc.demo.presets import Preset
from plexsvc.demo.spot_report import Act, SpotPoint, checks, spot_point, summarise
from tests.rigs.demo_runs import make_run, make_span

PRESET = Preset(name="spot", prompts=16, group=8)
RISING = [0.2 + 0.02 * step + 0.01 * (step % 2) for step in range(30)]
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


def act(rewards: list[float], seen: list[SpotPoint], **facts: float) -> Act:
    run = make_run("bits", rewards=rewards, **facts)  # type: ignore[arg-type] # by name
    return Act(runs=[run], spans=[make_span("step", 0, SECOND)], points=seen)


def failed(spot: Act) -> list[str]:
    summary = summarise(act(RISING, []), spot, preset=PRESET)
    return [check.name for check in checks(summary) if not check.passed]


def test_a_job_that_learns_under_kills_passes_every_check() -> None:
    spot = act(RISING, KILLED, instances_lost=1)
    assert failed(spot) == []
    summary = summarise(act(RISING, []), spot, preset=PRESET)
    assert (summary.kills, summary.most_serving) == (3, 2)
    assert summary.jobs[0].equal_steps == 30
    assert summary.jobs[0].samples == summary.jobs[0].samples_complete == 30 * 128


@pytest.mark.parametrize(
    ("spot", "names"),
    [
        (act(RISING, points("a", "a", "a"), instances_lost=1), ["kills"]),
        (act(RISING, KILLED, instances_lost=1, complete=127), ["samples of bits"]),
        (act([x + 0.03 for x in RISING], KILLED, instances_lost=1), ["rewards of bits"]),
        (act(RISING[::-1], KILLED, instances_lost=1), ["learning of bits"]),
    ],
)
def test_what_must_not_be_fails_its_check(spot: Act, names: list[str]) -> None:
    assert failed(spot) == names


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


def test_the_picture_shows_both_runs(tmp_path: Path) -> None:
    path = tmp_path / "spot.png"
    plots.plot_spot(path, without=act(RISING, []), spot=act(RISING, KILLED))
    assert path.read_bytes().startswith(b"\x89PNG")
