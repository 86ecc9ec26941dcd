"""Cluster of the demo: `plexctl up` as a child process, and jobs sent to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexclient.wire.v1.service_pb2_grpc import RouterStub
from plexsvc.cluster.calls import router
from plexsvc.cluster.embedded import DEFAULT_TENANT, ClusterConfig, NodeConfig
from plexsvc.cluster.places import job_dir, read_card
from plexsvc.controllers.submit import LOG
from plexsvc.demo.pool import PoolPoint, pool_point
from plexsvc.demo.spans import Span, Window, from_wire
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.config import DeviceConfig
from plexsvc.node.logs import tail
from plexsvc.node.toml import dumps
from plexsvc.rollout.config import RolloutConfig, SpotConfig
from plexsvc.router.config import RouterConfig
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.show.status import state_name

UP_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.5
_ENDED: Final = frozenset(
    {
        service_pb2.JOB_STATE_COMPLETED,
        service_pb2.JOB_STATE_FAILED,
        service_pb2.JOB_STATE_CANCELLED,
    }
)
SLOT_US: Final = 20_000
"""Slot of the planning horizon: the demo's cycles take a second or so."""
NO_BOUND_PPM: Final = 100_000_000
"""The jobs are to share the one device even where the planner knows that it costs them time."""
OnStatus = Callable[[service_pb2.ClusterStatus, reward_pb2.RewardsReply | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that completed."""

    job_id: str
    window: Window


class Stage:
    """A running cluster, as the commands see it.

    Attributes:
        pid: the cluster's process.
        job_names: what each job that was sent is called in files and logs, by its id.
        plan: how the jobs last shared a group of devices; None before they did.
        pool: the workers of the reward service, whenever the jobs were looked at.
        instances: the rollout instances, whenever the jobs were looked at, with the time in us.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        pid: int,
        calls: RouterStub,
        notes_pool: bool = False,
        notes_instances: bool = False,
    ) -> None:
        self.pid = pid
        self.job_names: dict[str, str] = {}
        self.plan: service_pb2.PackReply | None = None
        self.pool: list[PoolPoint] = []
        self.instances: list[tuple[int, service_pb2.ListInstancesReply]] = []
        self._notes_pool, self._notes_instances = notes_pool, notes_instances
        self._state_dir = state_dir
        self._calls = calls
        self._running: set[str] = set()

    def submit(self, script: Path, *args: str, name: str, label: str = "") -> str:
        """Send a controller as `plexctl submit` does; return its job's id.

        A job of a `name` that ran before starts warm: its cycle is known. `label` tells them apart.

        Raises:
            PlexError: `unavailable` with what the command said when it failed.
        """
        argv = _plexctl("submit", "--json", "--state-dir", str(self._state_dir), "--name", name)
        done = subprocess.run(
            [*argv, str(script), *args], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise PlexError(ErrorCode.UNAVAILABLE, f"plexctl submit {name} failed: {done.stderr}")
        job_id = str(json.loads(done.stdout)["job_id"])
        self._running.add(job_id)
        self.job_names[job_id] = f"{name}-{label}" if label else name
        return job_id

    def wait(self, job_ids: Sequence[str], *, on_status: OnStatus, timeout_s: float) -> list[Ended]:
        """Return when the jobs have completed, in the order of their ids.

        Raises:
            PlexError: `job_ended` with the end of its log when one failed; `operation_timeout`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.status()
            on_status(status, self._note_pool(status))
            self._note_plan()
            self._note_instances(status)
            jobs = {job.job_id: job for job in status.jobs}
            found = [jobs[job_id] for job_id in job_ids if job_id in jobs]
            over = [job for job in found if job.state in _ENDED]
            for job in over:
                self._running.discard(job.job_id)
                _check_completed(job)
            if len(over) == len(job_ids):
                return [_ended(jobs[job_id]) for job_id in job_ids]
            time.sleep(POLL_S)
        raise PlexError(
            ErrorCode.OPERATION_TIMEOUT,
            f"jobs {', '.join(job_ids)} did not end in {timeout_s:g} s; read their logs",
        )

    def _note_pool(self, status: service_pb2.ClusterStatus) -> reward_pb2.RewardsReply | None:
        if not self._notes_pool:
            return None
        reply = self._calls.GetRewards(reward_pb2.GetRewardsRequest())
        self.pool.append(pool_point(reply, at_us=status.now_us))
        return reply

    def _note_plan(self) -> None:
        plan = self._calls.GetPack(service_pb2.PackRequest())
        if any(len(group.residents) > 1 for group in plan.groups):
            self.plan = plan

    def _note_instances(self, status: service_pb2.ClusterStatus) -> None:
        if self._notes_instances:
            reply = self._calls.ListInstances(service_pb2.ListInstancesRequest())
            self.instances.append((status.now_us, reply))

    def status(self) -> service_pb2.ClusterStatus:
        """Return the cluster's status."""
        request = service_pb2.GetStatusRequest()
        return self._calls.GetStatus(request)

    def spans(self) -> list[Span]:
        """Return all that the devices did so far."""
        kinds = {f"{d.node_id}:{d.index}": d.kind for d in self.status().devices}
        found: list[service_pb2.Span] = []
        while True:
            request = service_pb2.TimelineRequest(after_index=found[-1].index if found else 0)
            reply = self._calls.Timeline(request)
            if not reply.spans:
                return from_wire(found, kinds=kinds)
            found += reply.spans

    def log_of(self, job_id: str) -> bytes:
        """Return a job's log."""
        return (job_dir(self._state_dir, job_id) / LOG).read_bytes()

    def cancel_running(self) -> None:
        """Cancel the jobs that were sent and have not ended."""
        for job_id in sorted(self._running):
            request = service_pb2.EndJobRequest(
                job_id=job_id,
                outcome=service_pb2.JOB_STATE_CANCELLED,
                reason="the demo was interrupted",
            )
            self._calls.EndJob(request, timeout=STOP_TIMEOUT_S)


@contextmanager
def open_stage(
    state_dir: Path,
    *,
    device_bytes: int,
    rollout_bytes: int,
    notes_pool: bool = False,
    max_num_seqs: int = 256,
    spot_devices: int = 0,
    spot: SpotConfig | None = None,
) -> Iterator[Stage]:
    """Bring a cluster up, one training device and two for rollout; take it down at the end.

    Beside them it has `spot_devices`, which come and go as `spot` says. An engine takes
    `max_num_seqs` samples at a time.

    Raises:
        PlexError: `unavailable` with the end of its log when it does not come up.
    """
    state_dir.mkdir(mode=0o700, parents=True)
    config_path, log_path = state_dir / "cluster.toml", state_dir / "up.log"
    config_path.write_text(
        dumps(
            _config(
                state_dir,
                device_bytes=device_bytes,
                rollout_bytes=rollout_bytes,
                max_num_seqs=max_num_seqs,
                spot_devices=spot_devices,
                spot=spot or SpotConfig(),
            )
        )
    )
    tether = (sys.executable, "-m", "plexsvc.tether", str(os.getpid()))
    with log_path.open("wb") as log_file:
        process = subprocess.Popen(
            [*tether, *_plexctl("up", "--config", str(config_path), "--state-dir", str(state_dir))],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    try:
        with _calls(process, state_dir=state_dir, log_path=log_path) as calls:
            stage = Stage(
                state_dir,
                pid=process.pid,
                calls=calls,
                notes_pool=notes_pool,
                notes_instances=spot_devices > 0,
            )
            try:
                yield stage
            except BaseException:
                stage.cancel_running()
                raise
    finally:
        _stop(process)


def _config(
    state_dir: Path,
    *,
    device_bytes: int,
    rollout_bytes: int,
    max_num_seqs: int,
    spot_devices: int,
    spot: SpotConfig,
) -> ClusterConfig:
    coming = [DeviceConfig(kind="spot", bytes_total=rollout_bytes)] * spot_devices
    rollout = DeviceConfig(kind="rollout", bytes_total=rollout_bytes)
    train = DeviceConfig(kind="train", bytes_total=device_bytes)
    return ClusterConfig(
        state_dir=state_dir,
        listen="127.0.0.1:0",
        nodes=(NodeConfig(node_id="local", devices=(train, rollout, rollout, *coming)),),
        rollout=RolloutConfig(spot=spot),
        router=RouterConfig(roots={DEFAULT_TENANT: (state_dir.parent.absolute() / "models",)}),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            slot_us=SLOT_US,
            duty_cap_ppm=NO_BOUND_PPM,
            max_slowdown_ppm=NO_BOUND_PPM,
            target_slowdown_ppm=NO_BOUND_PPM,
            critical_target_ppm=NO_BOUND_PPM,
        ),
    )


@contextmanager
def _calls(
    process: subprocess.Popen[bytes], *, state_dir: Path, log_path: Path
) -> Iterator[RouterStub]:
    deadline = time.monotonic() + UP_TIMEOUT_S
    while (card := read_card(state_dir)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"the demo's cluster did not come up; its log {log_path} ends:\n{tail(log_path)}",
            )
        time.sleep(POLL_S)
    with router(card) as calls:
        yield calls


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _plexctl(*args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "plexsvc.cli.main", *args)


def _check_completed(job: service_pb2.Job) -> None:
    if job.state != service_pb2.JOB_STATE_COMPLETED:
        raise PlexError(
            ErrorCode.JOB_ENDED, f"job {job.name} {state_name(job)} ({job.job_id}): {job.reason}"
        )


def _ended(job: service_pb2.Job) -> Ended:
    window = Window(start_us=job.created_us, end_us=job.ended_us)
    return Ended(job_id=job.job_id, window=window)
