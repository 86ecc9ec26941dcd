"""Turns on two pools, played out: who waits for whom, and what that comes to."""

from __future__ import annotations

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.planning.turns import Stage, Turns, slowdowns_ppm, together


def job(
    *stages: tuple[str, int], switch_us: int = 0, period_us: int = 0, most_ppm: int = PPM
) -> Turns:
    """Return a job that works so long on units with one letter each, one after another."""
    return Turns(
        period_us=period_us or sum(busy_us for _, busy_us in stages),
        stages=tuple(
            Stage(units=tuple(map(UnitId, units)), busy_us=busy_us, switch_us=switch_us)
            for units, busy_us in stages
        ),
        most_ppm=most_ppm,
    )


def test_a_long_and_a_short_rollout_fill_both_pools_and_cost_nobody_anything() -> None:
    pair = [job(("r", 750), ("t", 250)), job(("r", 250), ("t", 750))]
    assert slowdowns_ppm(pair) == [PPM, PPM]


def test_jobs_that_share_one_pool_alone_wait_there_alone() -> None:
    rolls_here, rolls_there = job(("r", 500), ("t", 500)), job(("s", 500), ("t", 500))
    assert slowdowns_ppm([rolls_here, rolls_there]) == [PPM, PPM]
    third = job(("u", 500), ("t", 500))
    assert slowdowns_ppm([rolls_here, rolls_there, third]) == [1_500_000] * 3


def test_a_switch_comes_on_top_when_another_was_there_before() -> None:
    pair = [job(("r", 500), ("t", 500), switch_us=50) for _ in range(2)]
    assert slowdowns_ppm(pair) == [1_100_000, 1_100_000]
    assert slowdowns_ppm(pair[:1]) == [PPM]


def test_a_gang_waits_for_the_last_of_its_units() -> None:
    wide, narrow = job(("rs", 600), ("t", 400)), job(("s", 600), ("u", 400))
    assert min(slowdowns_ppm([wide, narrow])) >= 1_190_000


def test_together_are_those_who_meet_directly_or_over_others() -> None:
    one, two, three, other = (job((units, 1)) for units in ("a", "ab", "b", "c"))
    assert together(one, [three, other, two]) == [one, two, three]


def test_a_job_that_pauses_by_itself_leaves_its_devices_to_others() -> None:
    idle = job(("r", 100), ("t", 100), period_us=1000)
    assert slowdowns_ppm([idle, job(("r", 700), ("t", 300))]) == [PPM, 1_000_000]
