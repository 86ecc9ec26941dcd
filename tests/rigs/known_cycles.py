"""Cycles on record: what the core knows of jobs before they come."""

from __future__ import annotations

from plexsvc.ids import TenantId
from plexsvc.scheduler.core.events import ProfilesLoaded
from plexsvc.scheduler.core.planning.profile import SECOND_US, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from tests.fakes.fake_world import FakeWorld


def record_cycles(world: FakeWorld, *, rollout: str, end_s: int = 100, **rolls: int) -> None:
    """Have each job's cycle of 100 s on record: how long it rolls out, then its actor trains.

    `rollout` is the name of the deployments that roll out. Training ends at `end_s` of the cycle.
    """
    kept = []
    for job, roll_s in rolls.items():
        for name, since_s, until_s in ((rollout, 0, roll_s), ("actor", roll_s, end_s)):
            segment = Segment(
                phase="step",
                offset_us=since_s * SECOND_US,
                duration_us=(until_s - since_s) * SECOND_US,
            )
            profile = Profile(period_us=100 * SECOND_US, segments=(segment,), jitter_ppm=1)
            key = ProfileKey(tenant=TenantId("lab"), model="", layout="", name=f"{job}/{name}")
            kept.append(KeptProfile(key=key, profile=profile, at_us=1))
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=tuple(kept)))
