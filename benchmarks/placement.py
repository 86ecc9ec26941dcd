"""How long placement holds the scheduler's event loop: one JSON line.

    python -m benchmarks.placement [--nodes 16384] [--profile]

What is timed: `Scheduler.handle` and the encoding of the journal's rows, for each event with which
placement looks at the queue: a deployment is requested, or the devices of one come free. Nodes have
eight devices. Training deployments want 1 to 256 of them, in powers of two that are equally likely,
with measured cycles. The cluster is full, `--waiting` more wait, and jobs end as fast as others
come. No I/O is timed.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, TenantId
from plexsvc.scheduler.core.actions import (
    Action,
    CarryState,
    ForgetWpg,
    MoveState,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    Event,
    JobEndRequested,
    JobSubmitted,
    NodeJoined,
    OperationFinished,
    ProfilesLoaded,
    ResidencyMoved,
    StateCarried,
    WpgForgotten,
    WpgReady,
    WpgStopped,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.scheduler.core.vocabulary import DeviceFacts, JobState
from plexsvc.scheduler.driver.encoding import configured
from plexsvc.scheduler.driver.journal import Journal

DEVICES = 8
TENANT = TenantId("bench")
GIB = 1 << 30
START_US = 1_700_000_000_000_000
SHAPES = 64
"""Different cycles that jobs have."""


@dataclass(slots=True)
class Loop:
    """A core with its journal, whose every action is done at once."""

    core: Scheduler
    journal: Journal
    now_us: int = START_US
    facts: deque[Event] = field(default_factory=deque)
    took_ns: dict[str, list[int]] = field(default_factory=dict)
    is_timed: bool = False

    def post(self, fact: Event) -> None:
        """Decide on a fact and on all that follows from it."""
        self.facts.append(fact)
        while self.facts:
            self.now_us += SECOND_US
            event = replace(self.facts.popleft(), at_us=self.now_us)
            began = time.thread_time_ns()
            self.journal.rows([event])
            actions = self.core.handle(event)
            self.journal.decided(actions)
            self.note(type(event).__name__, time.thread_time_ns() - began)
            for action in actions:
                self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case SpawnWpg():
                ready = WpgReady(wpg_id=action.wpg_id, device_bytes=(GIB,) * len(action.places))
                self.facts.append(ready)
            case StartOperation():
                done = OperationFinished(
                    operation_id=action.operation_id,
                    fault=None,
                    is_refusal=False,
                    run_us=1000,
                    digest="",
                )
                self.facts.append(done)
            case MoveState():
                moved = ResidencyMoved(
                    wpg_id=action.wpg_id, move_id=action.move_id, nbytes=GIB, total_us=1000
                )
                self.facts.append(moved)
            case CarryState():
                carried = StateCarried(
                    deployment_id=action.deployment_id, move_id=action.move_id, nbytes=GIB
                )
                self.facts.append(carried)
            case StopWpg():
                self.facts.append(WpgStopped(wpg_id=action.wpg_id))
            case ForgetWpg():
                self.facts.append(WpgForgotten(wpg_id=action.wpg_id))
            case _:
                pass

    def note(self, what: str, took_ns: int) -> None:
        """Remember how long something took, once the cluster is full."""
        if self.is_timed:
            self.took_ns.setdefault(what, []).append(took_ns)


class Crowd:
    """Jobs that come and go; each has one training deployment."""

    def __init__(self, loop: Loop, *, dice: np.random.Generator, max_gang: int) -> None:
        self._loop = loop
        self._dice = dice
        self._gangs = [1 << power for power in range(max_gang.bit_length())]
        self._made = 0

    def come(self) -> None:
        """Have one more job ask for devices."""
        self._made += 1
        job_id = JobId(f"job-{self._made}")
        name = str(int(self._dice.integers(SHAPES)))
        num_devices = int(self._dice.choice(self._gangs))
        self._loop.post(JobSubmitted(job_id=job_id, tenant=TENANT, name=name))
        self._loop.post(
            DeploymentRequested(
                deployment_id=DeploymentId(f"{job_id}/actor"),
                job_id=job_id,
                initialize_id=OperationId(self._made.to_bytes(16, "big")),
                role="actor",
                backend="fsdp",
                device_kind="train",
                num_devices=num_devices,
                is_rollout=False,
                name="actor",
            )
        )

    def go(self) -> None:
        """End one of the jobs that have devices."""
        view = self._loop.core.view
        placed = [d.job_id for d in view.deployments.values() if d.wpg_id is not None]
        job_id = placed[int(self._dice.integers(len(placed)))]
        done = JobEndRequested(job_id=job_id, outcome=JobState.COMPLETED, reason="done")
        self._loop.post(done)


def main() -> None:
    """Fill a cluster, let jobs come and go, print what placement took."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=256)
    options.add_argument("--waiting", type=int, default=500)
    options.add_argument("--max-gang", type=int, default=256)
    options.add_argument("--events", type=int, default=500, help="jobs that come and go")
    options.add_argument("--cold", action="store_true", help="no cycle is known")
    options.add_argument("--profile", action="store_true")
    asked = options.parse_args()
    dice = np.random.default_rng(1)
    loop = _loop(asked.nodes, dice=dice, is_cold=asked.cold)
    crowd = Crowd(loop, dice=dice, max_gang=asked.max_gang)
    view = loop.core.view
    while len(view.unplaced) < asked.waiting:
        crowd.come()
    profiler = cProfile.Profile()
    loop.is_timed = True
    gc.collect()
    if asked.profile:
        profiler.enable()
    for _ in range(asked.events):
        crowd.go()
        while len(view.unplaced) < asked.waiting:
            crowd.come()
    profiler.disable()
    report: dict[str, object] = {
        "nodes": asked.nodes,
        "placed": sum(len(p.board.group_of) for p in view.planners.values()),
        "groups": sum(len(p.board.groups) for p in view.planners.values()),
        "waiting": len(view.unplaced),
    }
    places = loop.took_ns["DeploymentRequested"] + loop.took_ns["WpgForgotten"]
    report["placement events"] = _spread(places)
    report |= {name: _spread(took) for name, took in sorted(loop.took_ns.items())}
    print(json.dumps(report))
    if asked.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def _spread(took_ns: list[int]) -> dict[str, float]:
    found = {"events": float(len(took_ns))}
    for q in (50, 99, 100):
        found[f"p{q}_ms"] = round(float(np.percentile(took_ns, q)) / 1e6, 3)
    return found


def _loop(num_nodes: int, *, dice: np.random.Generator, is_cold: bool) -> Loop:
    limits = Limits(max_jobs=1_000_000, placement_timeout_us=10**15)
    made = configured(limits, epoch=1)
    loop = Loop(made.new_core(), Journal(made))
    if not is_cold:
        loop.post(ProfilesLoaded(profiles=tuple(_kept(at, dice) for at in range(SHAPES))))
    devices = tuple(
        DeviceFacts(index=at, kind="train", bytes_total=80 * GIB) for at in range(DEVICES)
    )
    for number in range(num_nodes):
        node_id = NodeId(f"n{number:05d}")
        loop.post(NodeJoined(node_id=node_id, devices=devices, host_bytes=2048 * GIB))
    return loop


def _kept(number: int, dice: np.random.Generator) -> KeptProfile:
    period_us = round(dice.uniform(60, 900) * SECOND_US)
    busy_us = round(period_us * dice.uniform(0.15, 0.40))
    segment = Segment(phase="forward_backward", offset_us=0, duration_us=busy_us)
    profile = Profile(
        period_us=period_us,
        segments=(segment,),
        mode=Mode.ASYNC1,
        switch_us=round(dice.uniform(3, 19) * SECOND_US),
        jitter_ppm=150_000,
    )
    key = ProfileKey(tenant=TENANT, model="", layout="", name=f"{number}/actor")
    return KeptProfile(key=key, profile=profile, at_us=START_US)


if __name__ == "__main__":
    main()
