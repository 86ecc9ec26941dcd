"""The real service for tests: `plexctl up` as a process, with what a test needs to look inside."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import grpc

import plexclient as plex
from plexclient.wire.v1 import node_pb2, node_pb2_grpc, service_pb2, service_pb2_grpc
from plexsvc.cluster.places import keys_file
from plexsvc.node import found
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.rpc.keys import ClusterKeys, read_keys
from tests.rigs.processes import command_of, running

MIB = 1 << 20
ROOT = Path(tempfile.gettempdir())
"""Where the models and checkpoints of tests lie."""
TETHERED = [sys.executable, "-m", "plexsvc.tether", str(os.getpid()), sys.executable]
"""What starts a Python that dies with this process."""
DEVICE_BYTES = 2 * MIB
"""One device: it holds the state of one tiny model's trainer, not of two."""
TRAIN = f'{{ kind = "train", bytes_total = {DEVICE_BYTES} }}'
ROLLOUT = f'{{ kind = "rollout", bytes_total = {1024 * MIB} }}'
SHARES_ALL = '[scheduler]\npolicy = "plex_crowded"\nmax_slowdown_ppm = 100_000_000\n'
"""Bounds so wide that jobs share devices even where the planner knows that it costs them time."""
DEFAULT_NODES = {"node-a": [TRAIN] * 2 + [ROLLOUT] * 3, "node-b": [TRAIN]}


def configuration(
    state_dir: Path,
    nodes: Mapping[str, Sequence[str]],
    *,
    scheduler: str = SHARES_ALL,
    staging_bytes: int = 256 * MIB,
    host_bytes: int = 2048 * MIB,
    node: str = "",
) -> str:
    """Return the TOML of a cluster with these nodes, devices and bounds; `node` is keys of each."""
    tables = [
        f'state_dir = "{state_dir}"\nlisten = "127.0.0.1:0"\nscheduler_listen = "127.0.0.1:0"'
    ]
    for node_id, devices in nodes.items():
        tables.append(
            f'[[nodes]]\nnode_id = "{node_id}"\nhost_bytes = {host_bytes}\n'
            f"staging_bytes = {staging_bytes}\ndevices = [{', '.join(devices)}]\n{node}"
        )
    tenants = ("default", "ops")
    roots = "[router.roots]\n" + "".join(f'{tenant} = ["{ROOT}"]\n' for tenant in tenants)
    return "\n\n".join([*tables, scheduler, roots])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """A running service and how to reach it."""

    address: str
    token: str
    state_dir: Path
    pid: int
    scheduler: str
    """Where a router apart reaches it."""
    http: str = ""
    """Where clients that speak HTTP reach it."""

    @property
    def keys(self) -> ClusterKeys:
        """What its processes know each other by."""
        return read_keys(keys_file(self.state_dir))

    def connect(self) -> plex.Cluster:
        """Return a client connection."""
        return plex.connect(self.address, token=self.token)

    def status(self) -> service_pb2.ClusterStatus:
        """Return what the service says of its nodes, devices, jobs and deployments."""
        reply: service_pb2.ClusterStatus = self._call("GetStatus", service_pb2.GetStatusRequest())
        return reply

    def jobs(self) -> dict[str, service_pb2.Job]:
        """Return all jobs by id, ended ones too."""
        reply = self._call("ListJobs", service_pb2.ListJobsRequest(include_ended=True))
        return {job.job_id: job for job in reply.jobs}

    def nodes(self) -> list[service_pb2.NodeView]:
        """Return the nodes, with what lives on each."""
        return list(self._call("ListNodes", service_pb2.ListNodesRequest()).nodes)

    def instances(self) -> dict[str, service_pb2.InstanceView]:
        """Return rollout instances, and what may have one, by device."""
        reply = self._call("ListInstances", service_pb2.ListInstancesRequest())
        return {view.device: view for view in reply.instances}

    def phases(self) -> list[str]:
        """Return the phase of each rollout instance, sorted; several may share a device."""
        reply = self._call("ListInstances", service_pb2.ListInstancesRequest())
        return sorted(view.phase for view in reply.instances)

    def drain_instance(self, device: str) -> None:
        """Do what `plexctl instance drain DEVICE` does."""
        self._call("DrainInstance", service_pb2.DrainInstanceRequest(device=device))

    def move_job(self, job_id: str) -> None:
        """Do what `plexctl job move JOB` does."""
        self._call("MoveJob", service_pb2.MoveJobRequest(job_id=job_id))

    def explain(self, job_id: str) -> str:
        """Do what `plexctl explain JOB` does."""
        reply = self._call("ExplainOperation", service_pb2.ExplainRequest(job_id=job_id))
        return "\n".join([reply.text, *reply.facts])

    def timeline(self) -> list[service_pb2.Span]:
        """Return what the devices did."""
        found: list[service_pb2.Span] = []
        while True:
            request = service_pb2.TimelineRequest(after_index=found[-1].index if found else 0)
            reply = self._call("Timeline", request)
            if not reply.spans:
                return found
            found += reply.spans

    def _call(self, method: str, request: object) -> Any:
        with grpc.insecure_channel(self.address) as channel:
            stub = service_pb2_grpc.RouterStub(channel)
            metadata = [("authorization", f"Bearer {self.token}")]
            return getattr(stub, method)(request, timeout=10, metadata=metadata)


KEPT_STATES: Final = "PLEX_TEST_KEPT_STATES"
"""Environment variable: where state directories of clusters outlive the tests."""


def state_beside(directory: Path) -> Path:
    """Return `directory`'s state directory, a link to one outside `ROOT`: no root may hold it.

    It goes when this process ends, unless `KEPT_STATES` names a directory to keep it in.
    """
    link = directory / "state"
    if not link.is_symlink():
        kept = os.environ.get(KEPT_STATES)  # noqa: TID251 - of the recorder of journals
        place = tempfile.mkdtemp(prefix="plex-state-", dir=kept or "/var/tmp")
        if not kept:
            atexit.register(shutil.rmtree, place, ignore_errors=True)
        link.symlink_to(place)
    return link


class Service:
    """`plexctl up` as a process that tests kill and start again; a context manager.

    Attributes:
        live: the service that runs now.
    """

    live: LiveCluster

    def __init__(
        self,
        directory: Path,
        *,
        nodes: Mapping[str, Sequence[str]] = DEFAULT_NODES,
        boot_s: float = 120,
        extra: str = "",
        scheduler: str = SHARES_ALL,
        staging_bytes: int = 256 * MIB,
        host_bytes: int = 2048 * MIB,
        node: str = "",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write the configuration.

        `extra` opens it, `scheduler` is the table of that name, `node` is keys of each node.
        `environment` is added to this process's.
        """
        self._environment = environment
        self._log = directory / "up.log"
        self._boot_s = boot_s
        self._state_dir = state_beside(directory)
        self._config = directory / "cluster.toml"
        tables = configuration(
            self._state_dir,
            nodes,
            scheduler=scheduler,
            staging_bytes=staging_bytes,
            host_bytes=host_bytes,
            node=node,
        )
        self._config.write_text(extra + tables)
        self._process: subprocess.Popen[bytes] | None = None
        self._standbys: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        while self._standbys:
            self.dismiss()
        self.stop()
        for agent in found.find_all(self._state_dir):  # of a service that was killed
            found.end(agent)

    def start(self) -> None:
        """Start the service, in the place of one that was killed; return when it serves."""
        self.launch()
        self.arrive()

    def launch(self) -> None:
        """Start the service; it may be killed before it serves."""
        self._process = self._up()

    def arrive(self) -> None:
        """Return when the service that was launched serves."""
        self.live = _wait_until_up(
            self.process, state_dir=self._state_dir, log=self._log, boot_s=self._boot_s
        )

    def _up(self, *options: str) -> subprocess.Popen[bytes]:
        command = [*TETHERED, "-m", "plexsvc.cli.main", "up", "--config", str(self._config)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},  # noqa: TID251 - as without `env`
            )

    def stand_by(self) -> subprocess.Popen[bytes]:
        """Start one more service; return it when it waits."""
        self._log.touch()
        before = self._log.read_text().count("standby")
        self._standbys.append(self._up("--standby"))
        deadline = time.monotonic() + self._boot_s
        while self._log.read_text().count("standby") == before:
            if self._standbys[-1].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no standby:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)  # noqa: TID251 - waits for another process, not for time to pass
        return self._standbys[-1]

    def dismiss(self) -> None:
        """Kill the standby that was started last."""
        standby = self._standbys.pop()
        standby.kill()
        standby.wait(timeout=20)

    def succeed(self) -> None:
        """Go on with the standby that waits longest; return when it serves."""
        self._process = self._standbys.pop(0)
        self.arrive()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The service that leads."""
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """Kill the service with SIGKILL, and it alone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=20)

    def leave(self) -> None:
        """Do what `plexctl down --keep` does."""
        command = [sys.executable, "-m", "plexsvc.cli.main", "down", "--keep"]
        subprocess.run([*command, "--state-dir", str(self._state_dir)], check=True, timeout=90)
        assert self._process is not None
        self._process.wait(timeout=20)

    def stop(self) -> None:
        """Stop the service with SIGTERM, and everything that runs below it."""
        if self._process is not None:
            _stop(self._process)


@contextlib.contextmanager
def start_cluster(directory: Path, **options: Any) -> Iterator[LiveCluster]:
    """Start `plexctl up`, with the options of `Service`. Stop it with SIGTERM at the end."""
    with Service(directory, **options) as service:
        yield service.live


def _wait_until_up(
    process: subprocess.Popen[bytes], *, state_dir: Path, log: Path, boot_s: float
) -> LiveCluster:
    path = state_dir / "cluster.json"
    deadline = time.monotonic() + boot_s
    facts: dict[str, Any] = {}
    while facts.get("pid") != process.pid:  # before, it may be that of a service that was killed
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"plexctl up did not come up:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)  # noqa: TID251 - waits for another process, not for time to pass
        facts = json.loads(path.read_text()) if path.exists() else {}
    return LiveCluster(
        address=facts["address"],
        token=facts["token"],
        state_dir=state_dir,
        pid=process.pid,
        scheduler=facts["scheduler"],
        http=facts["http"],
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=5)


def rank_processes(
    cluster: LiveCluster, deployment_ids: list[str], *, are_up: bool = False
) -> list[int]:
    """Return the pids of the deployments' ranks, in the order of the ids; those that start, too,
    unless they must be up.
    """
    wpg_of = {d.deployment_id: d.wpg_id for d in cluster.status().deployments}
    procs: dict[str, list[int]] = {}
    for proc in processes(cluster):
        if proc.address or not are_up:
            procs.setdefault(proc.wpg_id, []).append(proc.pid)
    return [pid for deployment in deployment_ids for pid in procs[wpg_of[deployment]]]


def processes(cluster: LiveCluster) -> Iterator[node_pb2.ProcSummary]:
    """Yield what the agents of all nodes know of their processes.

    A node that a test took away stays in the cluster's books, lost, and nobody answers there.
    """
    for node in cluster.status().nodes:
        if node.state == "lost":
            continue
        with open_blocking_channel(node.address.agent, cluster.keys) as channel:
            yield from (
                node_pb2_grpc.NodeStub(channel)
                .Describe(node_pb2.NodeDescribeRequest(), timeout=60)
                .procs
            )


def rewards_address(cluster: LiveCluster) -> str:
    """Return where the reward proxy listens."""
    (pid,) = running("plexsvc.reward.main", below=cluster.pid)
    command = command_of(pid)
    config = Path(command[command.index("--config") + 1])
    return str(tomllib.loads(config.read_text())["listen"])


def shared_resident_bytes(pid: int) -> int:
    """Return the shared memory pages a process has resident (RssShmem), in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} reports no RssShmem")
