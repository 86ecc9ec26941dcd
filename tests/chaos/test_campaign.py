"""Faults of every kind at every moment, under two durable jobs: no bit, score or bill changes.

Two jobs that share a device train, save, load, publish, generate and score on fixed data. A fault
hits one operation of one of them at a drawn instant; the next one comes when that is answered. So
each run of the jobs meets many faults, and ends as the undisturbed one did.

`PLEX_CHAOS_FAULTS` says how many faults there are, `PLEX_CHAOS_SEED` draws. Of the faults that may
hit an operation one comes that has hit least, in earlier campaigns too if `PLEX_CHAOS_HITS` names a
file: it gets the hits of runs that ended well. Beside that the service is killed again and again,
at moments that have nothing to do with operations: `PLEX_CHAOS_KILLS`.

A run that ends otherwise says which items differ, and leaves the service's state beside its log.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

import plexclient as plex
from plexclient.wire.v1 import (
    common_pb2,
    service_pb2,
    service_pb2_grpc,
    statemanager_pb2,
    statemanager_pb2_grpc,
)
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.chaos_controller import Controller, LostControllerError, Spec
from tests.rigs.chaos_kinds import (
    ENDS,
    KINDS,
    ON_DEVICE,
    ONLY_ON,
    REBUILT,
    Cluster,
    Fault,
    Router,
    Victims,
    cells,
    free_address,
    pause,
    read_hits,
    show,
    table,
    write_hits,
)
from tests.rigs.chaos_proxy import Faults as Line
from tests.rigs.chaos_proxy import running_proxy
from tests.rigs.live_cluster import (
    ROLLOUT,
    TRAIN,
    Service,
    rank_processes,
    state_beside,
)
from tests.rigs.postgres import running_postgres
from tests.rigs.processes import descendants, is_alive, managers, running
from tests.rigs.waiting import wait_until

FAULTS: Final = int(os.environ.get("PLEX_CHAOS_FAULTS") or 0)  # noqa: TID251 - of `make chaos`
SEED: Final = int(os.environ.get("PLEX_CHAOS_SEED") or 22)  # noqa: TID251 - of `make chaos`
KILLS: Final = int(os.environ.get("PLEX_CHAOS_KILLS", "3"))  # noqa: TID251 - of `make chaos`
"""How often in a row the service is killed."""
LIVES_S: Final = 5.0
"""At most so long it then serves."""
ONLY: Final = os.environ.get("PLEX_CHAOS_KINDS", "")  # noqa: TID251 - of `make chaos`
"""What the names of the kinds begin with, separated by commas; empty: all kinds."""
ONLY_AT: Final = os.environ.get("PLEX_CHAOS_MOMENTS", "")  # noqa: TID251 - of `make chaos`
"""The same of moments."""
HITS: Final = os.environ.get("PLEX_CHAOS_HITS", "")  # noqa: TID251 - of `make chaos`
"""A file of what campaigns hit so far."""
FEW: Final = 6
"""Faults in `make test`."""
BOOT_S: Final = 6.0
"""Within which a service that takes over is hit."""
ANSWERED_S: Final = 300.0
MAX_INSTANCES: Final = 2
SPARED: Final = 1 / 4
"""Share of operations that are hit although faults that hit less may hit others."""
INSTANCES_S: Final = 620.0
"""So many in so long: a deployment whose instances break more often ends."""
MAX_STATES: Final = 7
STATES_S: Final = 3620.0
"""The same of state managers: the eighth successor begins anew (`max_restarts`)."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(400 + 60 * (FAULTS + KILLS)),
]

SIZES: Final = {"inline": 6, "staged": 220}
"""Sequences of each job's batches: some go inside their operation, others by the node's memory."""
APART: Final = "staged"
"""The job whose client goes through a line that breaks, to a router apart."""
OF_NO_OPERATION: Final = {"switch_in", "switch_out", "turns", "memory", "pooled"}
"""What a job also pays for."""
Start = Callable[[], "Future[Any] | None"]
Outcome = dict[str, Any]
"""All that came of a job: what it is, and what it came to."""
UNHEARD: Final = "its controller died before it heard"
"""What came of a step that was done when its job was taken over."""
LIVES: Final = 40
"""Controllers of a job at most."""


@dataclass(slots=True)
class Storm:
    """Faults that are due, and those that have hit; one at a time."""

    cluster: Cluster
    dice: random.Random
    due: list[Fault]
    """Those that may come."""
    most: int
    """Faults that hit, all in all."""
    loops: dict[str, Loop] = field(default_factory=dict)
    hits: Counter[Fault] = field(default_factory=Counter)
    """Those of earlier campaigns too."""
    count: int = 0
    """Faults that hit in this one."""
    late: int = 0
    """Faults that would have come after their operation."""
    usual_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """How long each job's operation takes undisturbed, at least."""
    instances: dict[str, list[float]] = field(default_factory=dict)
    """When instances were hit in this run, by job."""
    states: list[float] = field(default_factory=list)
    """When the state manager was hit."""
    one: threading.Lock = field(default_factory=threading.Lock)
    last: Loop | None = None
    """The job that was hit last."""
    cycle: threading.Barrier = field(default_factory=lambda: threading.Barrier(len(SIZES)))
    """Where jobs wait for each other, so that they share their device until the end."""

    def at(self, loop: Loop, moment: str, start: Start) -> Any:
        """Run an operation, and have a fault that is due hit it; return its result."""
        begun = time.monotonic()
        if not self.due or self.count == self.most:
            result = answer(start())
            took_s = time.monotonic() - begun
            of = (loop.name, moment)
            self.usual_s[of] = min(took_s, self.usual_s.get(of, took_s))
            return result
        is_others_turn = self.last is loop and self.dice.random() < 1 / 2
        if is_others_turn or not self.one.acquire(blocking=False):
            return answer(start())
        try:
            fault = self._choose(loop, moment)
            if fault is None:
                return answer(start())
            self.last, victims = loop, self._victims(loop)
            show(f"{time.strftime('%X')} {fault.kind}, {fault.moment}, in {moment} of {loop.name}")
            with self._held_up(loop) if fault.moment == "mid-switch" else ExitStack():
                future = start()
                is_hit = self._strike(fault, moment, future, loop, victims)
            self._count(fault, loop, is_hit=is_hit)
            try:
                return answer(future)
            finally:
                show(f"  {'hit' if is_hit else 'missed'}: {time.monotonic() - begun:.1f} s")
        finally:
            self.one.release()

    def _count(self, fault: Fault, loop: Loop, *, is_hit: bool) -> None:
        self.hits[fault] += is_hit
        self.count, self.late = self.count + is_hit, self.late + (not is_hit)
        if is_hit and fault.kind.startswith("instance"):
            self.instances.setdefault(loop.name, []).append(time.monotonic())
        if is_hit and fault.kind.startswith("state manager"):
            self.states.append(time.monotonic())

    def _choose(self, loop: Loop, moment: str) -> Fault | None:
        moments = {moment, "mid-takeover"}
        if moment in ON_DEVICE and self._is_away(loop):
            moments.add("mid-switch")
        kinds = {kind for kind in {fault.kind for fault in self.due} if self._may(kind, loop)}
        may = [fault for fault in self.due if fault.kind in kinds]
        fits = [fault for fault in may if fault.moment in moments]
        self.dice.shuffle(fits)
        # A switch to hit is rarer than anything else.
        found = min(fits, key=lambda f: (self.hits[f], f.moment != "mid-switch"), default=None)
        is_rare = found is None or self.hits[found] == min(self.hits[fault] for fault in may)
        return found if is_rare or self.dice.random() < SPARED else None

    def _is_away(self, loop: Loop, *, has_device: bool = False) -> bool:
        """Return whether a job's state is in host memory, and nobody has the device, or the job."""
        assert loop.controller is not None
        status, mine = self.cluster.service.live.status(), loop.controller.ids.actor
        (own,) = (one for one in status.deployments if one.deployment_id == mine)
        holders = {device.running_wpg for device in status.devices if device.kind == "train"}
        is_free = holders == ({own.wpg_id} if has_device else {""})
        return is_free and own.residency == common_pb2.RESIDENCY_HOST

    def _may(self, kind: str, loop: Loop) -> bool:
        if kind.startswith("instance"):
            since = time.monotonic() - INSTANCES_S
            return sum(at > since for at in self.instances.get(loop.name, [])) < MAX_INSTANCES
        if kind.startswith("state manager"):
            return sum(at > time.monotonic() - STATES_S for at in self.states) < MAX_STATES
        if kind.startswith(("line", "router")):
            return loop.name == APART
        if kind.startswith(REBUILT):
            return all(map(self._can_be_rebuilt, self.loops.values()))
        return True

    def _can_be_rebuilt(self, loop: Loop) -> bool:
        return loop.controller is None or "can be rebuilt" in self.cluster.service.live.explain(
            loop.controller.ids.job
        )

    def _victims(self, loop: Loop) -> Victims:
        """Return the processes that may be hit, once all are there."""
        live, agent = self.cluster.service.live, self.cluster.agent
        below = {"statemanager": agent, "reward": live.pid}
        assert loop.controller is not None
        ids = [loop.controller.ids.actor, loop.controller.ids.rollout]
        victims: Victims = {"agent": agent, "controller": loop.controller.pid}

        def are_there() -> bool:
            for module, pid in below.items():
                victims[module] = next(iter(running(f"plexsvc.{module}.main", below=pid)), 0)
            victims["rollout"] = next(iter(managers(below=agent)), 0)
            with suppress(KeyError):
                up = rank_processes(live, ids, are_up=True)  # a start that hangs has minutes
                victims["rank"], victims["instance"] = up
                return all(victims.values())
            return False

        wait_until(are_there, what="what died before has a successor")
        return victims

    @contextmanager
    def _held_up(self, loop: Loop) -> Iterator[None]:
        """Stop the rank whose state is on the device, so that it is on its way for a while."""
        (other,) = (each for each in self.loops.values() if each is not loop)
        pid = 0
        if other.controller is not None:
            with suppress(KeyError, ProcessLookupError):
                ids = [other.controller.ids.actor]
                pid = rank_processes(self.cluster.service.live, ids)[0]
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _strike(
        self, fault: Fault, moment: str, future: Future[Any] | None, loop: Loop, victims: Victims
    ) -> bool:
        """Let a fault happen while an operation runs; return whether it still ran."""
        if fault.moment == "mid-switch":
            wait([future] if future else [], timeout=0.3)
            if not self._is_away(loop, has_device=True):
                return False
        elif future is not None:
            usual_s = self.usual_s[loop.name, moment]
            still = wait([future], timeout=self.dice.uniform(0, 0.8 * usual_s)).not_done
            if not still and fault.moment != "mid-takeover":
                return False
        return self.cluster.hands.submit(self._happen, fault, victims).result()

    def _happen(self, fault: Fault, victims: Victims) -> bool:
        """Let it happen; return whether what it hits was still there."""
        service, takes_over = self.cluster.service, fault.moment == "mid-takeover"
        if takes_over:
            service.kill()
            service.launch()
            pause(self.dice.uniform(0, BOOT_S))
        is_there = True
        try:
            with contextmanager(KINDS[fault.kind])(self.cluster, victims):
                pause(self.dice.uniform(0, 0.5))
        except ProcessLookupError:  # it hung since an earlier fault, and was replaced just now
            is_there = False
        if takes_over:
            arrive(service)
        return is_there


def arrive(service: Service) -> None:
    """Return when a service has taken over; one that met a full disk has left, and is started."""
    try:
        service.arrive()
    except AssertionError:
        if service.process.poll() is None:
            raise
        service.start()


def answer(future: Future[Any] | None) -> Any:
    return None if future is None else future.result(ANSWERED_S)


@dataclass(slots=True)
class Loop:
    """One job on fixed data."""

    name: str
    cycles: int
    controller: Controller | None = None
    """The one that lives, or that died last."""
    seen: Outcome = field(default_factory=dict)
    met: int = 0
    """How often it waited for the other job."""

    def run(self, spec: Spec, place: Path, storm: Storm) -> Outcome:
        """Run it to its end, by as many controllers as it takes; return all that came of it."""
        for _ in range(LIVES):
            since = time.monotonic()
            try:
                with Controller.started(spec, resumes=self.controller is not None) as controller:
                    if self.controller is not None:
                        show(f"  {self.name} goes on after {time.monotonic() - since:.1f} s")
                        assert controller.ids == self.controller.ids
                    self.controller = controller
                    self._run(controller, place, storm)
                    self.controller = None
                    return self.seen
            except LostControllerError:
                show(f"  the controller of {self.name} died")
        raise AssertionError(f"{LIVES} controllers of {self.name} died")

    def _run(self, controller: Controller, place: Path, storm: Storm) -> None:
        for cycle in range(self.cycles):
            self._meet(storm, cycle)
            if cycle >= controller.position:  # passes without their step went with a controller
                self._train(controller, cycle, storm)
            self.seen.setdefault(f"step of cycle {cycle}", UNHEARD)
            path = str(place / f"{self.name}-{cycle}")
            for moment, *asked in (
                ("mid-save", "save", path),
                ("mid-load", "load", path, cycle + 1),
                ("mid-publish", "sync"),
                ("mid-generate", "generate", cycle),
                ("mid-score", "score", cycle),
            ):
                what = f"{asked[0]} of cycle {cycle}"
                if what not in self.seen:
                    self.seen[what] = storm.at(self, moment, partial(controller.submit, *asked))
        self._meet(storm, self.cycles)
        self.seen["parameters"] = answer(controller.submit("digest"))

    def _train(self, controller: Controller, cycle: int, storm: Storm) -> None:
        for part in range(2):
            passes = partial(controller.submit, "forward_backward", 100 * cycle + part)
            self.seen[f"pass {part} of cycle {cycle}"] = storm.at(self, "mid-pass", passes)
        storm.at(self, "between", lambda: None)
        step = partial(controller.submit, "step", cycle + 1)
        self.seen[f"step of cycle {cycle}"] = storm.at(self, "mid-step", step)

    def _meet(self, storm: Storm, cycle: int) -> None:
        if self.met == cycle:
            storm.cycle.wait(ANSWERED_S)
            self.met += 1


def run(storm: Storm, model: Path, *, cycles: int) -> list[Outcome]:
    """Run both jobs to their ends; return what came of each."""
    live = storm.cluster.service.live
    storm.instances.clear()
    storm.cycle = threading.Barrier(len(SIZES))
    storm.loops = {name: Loop(name, cycles) for name in SIZES}
    ends = {name: storm.cluster.proxy.address if name == APART else live.address for name in SIZES}
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as place,
        ThreadPoolExecutor(2) as threads,
    ):
        running = [
            threads.submit(
                loop.run,
                Spec(ends[name], live.token, name, str(model), SIZES[name]),
                Path(place),
                storm,
            )
            for name, loop in storm.loops.items()
        ]
        ended = wait(running, return_when=FIRST_EXCEPTION).done
        storm.cycle.abort()  # nobody waits there, unless the other has failed
        for first in ended:
            first.result()
        outcomes = [one.result() for one in running]
        expected = {f"{name}-{cycle}" for name in SIZES for cycle in range(cycles)}
        assert {path.name for path in Path(place).iterdir()} == expected, "no part of a save"
    return outcomes


def check_same(outcomes: list[Outcome], expected: list[Outcome]) -> None:
    """Check that both jobs came to the same; say what did not."""
    for name, found, wanted in zip(SIZES, outcomes, expected, strict=True):
        assert found.keys() == wanted.keys()
        differs = [what for what, one in found.items() if one not in (wanted[what], UNHEARD)]
        for what in differs:
            show(f"{what} of {name}: {found[what]}\n  instead of {wanted[what]}")
        assert not differs, name


def ask(storm: Storm, method: str, request: Any) -> Any:
    live = storm.cluster.service.live
    with grpc.insecure_channel(live.address) as channel:
        bearer = (("authorization", f"Bearer {live.token}"),)
        stub = service_pb2_grpc.RouterStub(channel)
        return getattr(stub, method)(request, timeout=30, metadata=bearer)


def check_what_is_left(storm: Storm, *, failed: int = 0) -> None:
    """Check that jobs ended well, that nothing of them is held, and that the bill adds up."""
    live = storm.cluster.service.live
    assert len([job for job in live.jobs().values() if job.reason]) == failed, live.jobs()
    over = {"stopped", "failed"} if failed else {"stopped"}
    wait_until(
        lambda: {one.state for one in live.status().deployments} <= over,
        what="no deployment is left",
    )
    node = live.status().nodes[0].address.state_manager

    def held() -> list[int]:
        with open_blocking_channel(node, live.keys) as channel:
            stub = statemanager_pb2_grpc.StateManagerStub(channel)
            kept = stub.Inventory(statemanager_pb2.InventoryRequest(), timeout=10)
        device_bytes = [device.bytes_used for device in kept.devices]
        return [kept.host_bytes_used, kept.staging_bytes_used, *device_bytes]

    wait_until(lambda: not any(held()), what="no memory is held")
    devices = live.status().devices
    bill = ask(storm, "GetCost", service_pb2.CostRequest()).costs
    for name, measured in (("device_us", "busy_us"), ("switch_us", "switch_us")):
        billed = sum(getattr(one, name) for one in bill)
        expected = sum(getattr(device, measured) for device in devices)
        assert abs(billed - expected) <= expected / 1000, (name, billed, expected)
    for job_id in {one.job_id for one in bill}:
        asked = service_pb2.CostRequest(job_id=job_id, by_operation=True)
        rest = {one.kind for one in ask(storm, "GetCost", asked).costs if not one.operation_id}
        assert rest <= OF_NO_OPERATION, "every operation's cost is known"


@contextmanager
def small_disk(directory: Path) -> Iterator[Path | None]:
    """Keep the state on a disk of its own, where that may be had; yield the file that fills it."""
    place = state_beside(directory).resolve()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m,mode=700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield place / "fills-the-disk"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def started(directory: Path, database: str) -> Iterator[Cluster]:
    """Start all that the jobs need; nothing of it is left afterwards."""
    with ExitStack() as stack:
        hands = stack.enter_context(ThreadPoolExecutor(1))
        disk, postgres = None, None
        extra = f'reward.listen = "{free_address()}"\nrollout.stall_us = 10_000_000\n'
        if database == "postgres":
            postgres = stack.enter_context(running_postgres())
            extra += f'database = "{postgres.create("chaos")}"\n'
        else:
            disk = stack.enter_context(small_disk(directory))
        service = Service(directory, nodes={"only": [TRAIN, ROLLOUT, ROLLOUT]}, extra=extra)
        stack.enter_context(service)
        router = Router.before(service, directory)
        stack.callback(router.send, signal.SIGKILL)
        line = running_proxy(router.address, seed=SEED, faults=Line())
        cluster = Cluster(service, stack.enter_context(line), router, hands, postgres, disk)
        try:
            yield cluster
        except BaseException:
            show((directory / "up.log").read_text()[-4000:])
            with suppress(shutil.Error):  # sockets are left out
                left_out = shutil.ignore_patterns("fills-the-disk")
                shutil.copytree(directory / "state", directory / "left", ignore=left_out)
            raise
        family = [service.process.pid, *descendants(service.process.pid)]
        family += [cluster.agent, *descendants(cluster.agent)]
    wait_until(lambda: not any(map(is_alive, family)), what="the whole family is gone")


@pytest.mark.parametrize("database", ["sqlite", *(["postgres"] if FAULTS else [])])
def test_two_jobs_end_as_if_nothing_had_happened(
    tmp_path: Path, tiny_model: Path, database: str
) -> None:
    with started(tmp_path, database) as cluster:
        dice = random.Random(SEED)
        cycles = 4 if FAULTS else 2
        storm = Storm(cluster, dice, [], FAULTS or FEW)
        expected = run(storm, tiny_model, cycles=cycles)
        check_what_is_left(storm)
        left_out = {
            kind for of, kinds in ONLY_ON.items() if of != database for kind in kinds
        } | ENDS
        if database == "sqlite" and cluster.disk is None:
            left_out |= {"disk full"}
        if not FAULTS:  # that a proxy hangs while it starts is found after a minute
            left_out |= {"rewards stopped"}
        only, only_at = tuple(ONLY.split(",")), tuple(ONLY_AT.split(","))
        kinds = [kind for kind in KINDS if kind not in left_out and kind.startswith(only)]
        storm.due = [fault for fault in cells(kinds) if fault.moment.startswith(only_at)]
        storm.hits.update(read_hits(Path(HITS)) if HITS else {})
        show(f"\nseed {SEED}, {storm.most} faults on {database}, without {sorted(left_out)}")
        while storm.count < storm.most:
            check_same(run(storm, tiny_model, cycles=cycles), expected)
            check_what_is_left(storm)
            show(f"{table(storm.hits)}\n{storm.count} faults hit, {storm.late} came too late")
            if HITS:
                write_hits(Path(HITS), storm.hits)
            if not FAULTS:
                break
        if FAULTS and not (ONLY or ONLY_AT):
            lose_the_node(storm, tiny_model)
            check_same(run(storm, tiny_model, cycles=cycles), expected)


@pytest.mark.rare
def test_a_service_that_is_killed_in_a_row_loses_nothing(tmp_path: Path, tiny_model: Path) -> None:
    with started(tmp_path, "sqlite") as cluster:
        dice, service, ends = random.Random(SEED), cluster.service, list[float]()
        storm = Storm(cluster, dice, [], 0)
        expected = run(storm, tiny_model, cycles=2)

        def kill_in_a_row() -> None:
            while len(ends) < KILLS:
                pause(dice.uniform(0, LIVES_S))
                began = time.monotonic()
                service.kill()
                service.start()
                ends.append(time.monotonic() - began)

        killing, runs = cluster.hands.submit(kill_in_a_row), 0
        while not killing.done():
            check_same(run(storm, tiny_model, cycles=2), expected)
            runs += 1
        killing.result()
        check_what_is_left(storm)
        show(
            f"seed {SEED}: {KILLS} kills during {runs} runs of both jobs; served again after "
            f"{sum(ends) / KILLS:.1f} s in the mean, {max(ends):.1f} s at most"
        )


def lose_the_node(storm: Storm, model: Path) -> None:
    """Kill the agent of the only node: both jobs end by name, and the node is there for others."""
    # After a step: before the first one both could be made anew.
    storm.due, storm.most = [Fault("agent killed", "mid-score")], storm.most + 1
    with pytest.raises(plex.PlexError) as caught:
        run(storm, model, cycles=2)
    # What was to be sampled from may be missed first: it is `not_found`, "lost with its node".
    assert caught.value.code in {"node_lost", "worker_died", "deployment_failed", "not_found"}
    check_what_is_left(storm, failed=len(SIZES))
