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
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexclient.wire.v1.service_pb2_grpc import RouterStub
from plexsvc.cluster.calls import router
from plexsvc.cluster.config import DEFAULT_TENANT, ClusterConfig, NodeConfig
from plexsvc.cluster.places import Card, job_dir, read_card
from plexsvc.controllers.submit import LOG
from plexsvc.demo.spans import DeviceSpan, Window, from_wire
from plexsvc.errors import ErrorCode, PlexError, unavailable
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
GOING_ON: Final = frozenset({service_pb2.JOB_STATE_QUEUED, service_pb2.JOB_STATE_RUNNING})
NO_BOUND_PPM: Final = 100_000_000
"""The jobs are to share the one device even where the planner knows that it costs them time."""
STATE: Final = "state"
"""Folder of the cluster's state in the demo's."""
ROLLOUT_BYTES: Final = 1 << 30
FEW_SEQS: Final = 16
"""Samples of an engine's step where generating is to take a share of the time."""
Look = tuple[service_pb2.ClusterStatus, service_pb2.ListInstancesReply, reward_pb2.RewardsReply]
"""What the service said at one moment."""


class DemoCluster:
    """A running cluster, as the commands see it.

    Attributes:
        pid: the cluster's process.
        plan: how the jobs last shared a group of devices; None before they did.
        looks: what the service said whenever the jobs were looked at.
    """

    def __init__(self, state_dir: Path, *, pid: int, calls: RouterStub) -> None:
        self.pid = pid
        self.plan: service_pb2.PackReply | None = None
        self.looks: list[Look] = []
        self._state_dir = state_dir
        self._calls = calls

    def submit(self, script: Path, *args: str, name: str) -> str:
        """Send a controller as `plexctl submit` does; return its job's id.

        A job of a `name` that ran before starts warm: its cycle is known.

        Raises:
            PlexError: `unavailable` with what the command said when it failed.
        """
        argv = plexctl("submit", "--json", "--state-dir", str(self._state_dir), "--name", name)
        done = subprocess.run(
            [*argv, str(script), *args], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise unavailable(f"plexctl submit {name} failed: {done.stderr}")
        return str(json.loads(done.stdout)["job_id"])

    def wait(
        self, job_ids: Sequence[str], *, on_look: Callable[[Look], None], timeout_s: float
    ) -> list[Window]:
        """Return the times of the jobs when all have completed, in the order of their ids.

        Raises:
            PlexError: `job_ended` with the end of its log when one failed; `operation_timeout`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            on_look(self._look())
            jobs = {job.job_id: job for job in self.looks[-1][0].jobs}
            over = [jobs[one] for one in job_ids if one in jobs and jobs[one].state not in GOING_ON]
            for job in over:
                if job.state != service_pb2.JOB_STATE_COMPLETED:
                    told = f"job {job.name} {state_name(job)} ({job.job_id}): {job.reason}"
                    raise PlexError(ErrorCode.JOB_ENDED, told)
            if len(over) == len(job_ids):
                return [Window(start_us=job.created_us, end_us=job.ended_us) for job in over]
            time.sleep(POLL_S)
        raise PlexError(
            ErrorCode.OPERATION_TIMEOUT,
            f"jobs {', '.join(job_ids)} did not end in {timeout_s:g} s; read their logs",
        )

    def _look(self) -> Look:
        plan = self._calls.GetPack(service_pb2.PackRequest())
        if any(len(group.residents) > 1 for group in plan.groups):
            self.plan = plan
        look = (
            self._calls.GetStatus(service_pb2.GetStatusRequest()),
            self._calls.ListInstances(service_pb2.ListInstancesRequest()),
            self._calls.GetRewards(reward_pb2.GetRewardsRequest()),
        )
        self.looks.append(look)
        return look

    def spans(self) -> list[DeviceSpan]:
        """Return all that the devices did so far."""
        devices = self._calls.GetStatus(service_pb2.GetStatusRequest()).devices
        kinds = {f"{one.node_id}:{one.index}": one.kind for one in devices}
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
        """Cancel the jobs that have not ended."""
        status = self._calls.GetStatus(service_pb2.GetStatusRequest())
        for job in status.jobs:
            if job.state in GOING_ON:
                request = service_pb2.EndJobRequest(
                    job_id=job.job_id,
                    outcome=service_pb2.JOB_STATE_CANCELLED,
                    reason="the demo was interrupted",
                )
                self._calls.EndJob(request, timeout=STOP_TIMEOUT_S)


@contextmanager
def open_stage(
    out_dir: Path,
    *,
    device_bytes: int,
    state: str = STATE,
    max_num_seqs: int = 256,
    spot_devices: int = 0,
    spot: SpotConfig | None = None,
) -> Iterator[DemoCluster]:
    """Bring a cluster up, one training device and two for rollout; take it down at the end.

    Beside them it has `spot_devices`, which come and go as `spot` says. An engine takes
    `max_num_seqs` samples at a time. Its state is kept in the folder `state` of `out_dir`.

    Raises:
        PlexError: `unavailable` with the end of its log when it does not come up.
    """
    state_dir = out_dir / state
    state_dir.mkdir(mode=0o700, parents=True)
    config_path, log_path = state_dir / "cluster.toml", state_dir / "up.log"
    rollout = DeviceConfig(kind="rollout", bytes_total=ROLLOUT_BYTES)
    coming = [DeviceConfig(kind="spot", bytes_total=ROLLOUT_BYTES)] * spot_devices
    train = DeviceConfig(kind="train", bytes_total=device_bytes)
    config = ClusterConfig(
        state_dir=state_dir,
        listen="127.0.0.1:0",
        nodes=(NodeConfig(node_id="local", devices=(train, rollout, rollout, *coming)),),
        rollout=RolloutConfig(spot=spot or SpotConfig()),
        router=RouterConfig(roots={DEFAULT_TENANT: (out_dir.absolute() / "models",)}),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            policy="plex_crowded",
            max_slowdown_ppm=NO_BOUND_PPM,
        ),
    )
    config_path.write_text(dumps(config))
    tether = (sys.executable, "-m", "plexsvc.tether", str(os.getpid()))
    up = plexctl("up", "--config", str(config_path), "--state-dir", str(state_dir))
    with log_path.open("wb") as log_file:
        process = subprocess.Popen(
            [*tether, *up],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    try:
        with router(_card_of(process, state_dir, log_path)) as calls:
            stage = DemoCluster(state_dir, pid=process.pid, calls=calls)
            try:
                yield stage
            except BaseException:
                stage.cancel_running()
                raise
    finally:
        stop(process)


def _card_of(process: subprocess.Popen[bytes], state_dir: Path, log_path: Path) -> Card:
    """Return a cluster's card once it is up."""
    deadline = time.monotonic() + UP_TIMEOUT_S
    while (card := read_card(state_dir)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            told = f"the demo's cluster did not come up; its log {log_path} ends:\n"
            raise unavailable(told + tail(log_path))
        time.sleep(POLL_S)
    return card


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, by SIGKILL if it does not end by itself."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def plexctl(*args: str) -> tuple[str, ...]:
    """Return a command of `plexctl`, as this Python runs it."""
    return (sys.executable, "-m", "plexsvc.cli.main", *args)
