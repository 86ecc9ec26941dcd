"""The real service inside the test's process: its driver can be told events and stopped midway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

import plexclient as plex
from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.cluster.config import ClusterConfig, NodeConfig
from plexsvc.cluster.embedded import EmbeddedCluster
from plexsvc.cluster.places import keys_file
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.node.config import DeviceConfig
from plexsvc.router.config import RouterConfig
from plexsvc.rpc import loops
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.rpc.keys import ClusterKeys, read_keys
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.actions import CarryState, RelocationChanged
from plexsvc.scheduler.core.events import Event, JobEndRequested, RelocationRequested
from plexsvc.scheduler.core.vocabulary import JobState, Place, RelocationStage
from plexsvc.scheduler.live import LiveScheduler
from tests.rigs.live_cluster import ROOT, state_beside
from tests.rigs.processes import command_of, descendants
from tests.rigs.scheduler_rig import listen

MIB = 1 << 20


@dataclass(slots=True)
class InnerCluster:
    """A running service, its driver, and what became of relocations."""

    address: str
    token: str
    driver: LiveScheduler
    loop: asyncio.AbstractEventLoop
    keys: ClusterKeys
    state_dir: Path
    changes: list[RelocationChanged] = field(default_factory=list)
    on_stage: dict[RelocationStage, Callable[[], None]] = field(default_factory=dict)
    """Called on the driver's loop, before anything that follows from the stage is done."""
    ended: threading.Event = field(default_factory=threading.Event)

    def connect(self) -> plex.Cluster:
        """Return a client connection."""
        return plex.connect(self.address, token=self.token)

    def relocate(self, deployment: plex.Deployment, *places: tuple[str, int]) -> None:
        """Ask for a deployment to move; `ended` is set when it has, or will not."""
        self.ended.clear()
        event = RelocationRequested(
            deployment_id=DeploymentId(deployment.deployment_id),
            places=tuple(Place(node_id=NodeId(node), device=device) for node, device in places),
            reason="a test asked",
        )
        self.loop.call_soon_threadsafe(self.driver.post, event)

    def wait(self) -> RelocationChanged:
        """Return how the relocation ended."""
        assert self.ended.wait(120), self.changes
        return self.changes[-1]

    def places(self, deployment: plex.Deployment) -> tuple[tuple[str, int], ...]:
        """Return where the ranks of a deployment are."""
        record = self.driver.registry.deployments[DeploymentId(deployment.deployment_id)]
        assert record.wpg is not None, record
        return tuple((place.node_id, place.device) for place in record.wpg.places)

    def pids(self) -> dict[str, list[int]]:
        """Return the processes of each WPG on nodes that answer; blocks whoever asks.

        Hosts of reward workers and rollout managers are none.
        """
        found: dict[str, list[int]] = {}
        for link in self.driver.nodes.links:
            channel = open_blocking_channel(link.target, self.keys)
            with channel, contextlib.suppress(grpc.RpcError):
                reply = node_pb2_grpc.NodeStub(channel).Describe(
                    node_pb2.NodeDescribeRequest(), timeout=60
                )
                for proc in reply.procs:
                    if not proc.wpg_id.startswith(("reward-", "manager-")):
                        found.setdefault(proc.wpg_id, []).append(proc.pid)
        return found

    def kill(self, deployment: plex.Deployment, *, is_new: bool) -> None:
        """Kill -9 a rank of a deployment that is being moved; on the driver's loop."""
        record = self.driver.registry.deployments[DeploymentId(deployment.deployment_id)]
        pids = self.pids()
        mine = [
            wpg_id
            for wpg_id, other in self.driver.registry.by_wpg.items()
            if other.deployment is record and other.is_current is not is_new
        ]
        os.kill(pids[mine[-1]][0], signal.SIGKILL)

    def kill_agent(self, node_id: str) -> None:
        """Kill -9 a node's agent; on the driver's loop."""
        os.kill(self.agents(node_id)[0], signal.SIGKILL)

    def take_power(self, node_id: str) -> int:
        """Leave nothing of a node but an agent that does not answer; return it.

        One that is killed is started again, maybe before anybody misses it.
        """
        (agent,) = self.agents(node_id)
        os.kill(agent, signal.SIGSTOP)
        for pid in descendants(agent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return agent

    def agents(self, node_id: str) -> list[int]:
        """Return the agent of a node."""
        found = [pid for pid in descendants(os.getpid()) if _is_agent(pid, node_id)]
        forked = {child for pid in found for child in descendants(pid)}  # and not executed yet
        return [pid for pid in found if pid not in forked]

    def cancel(self, deployment: plex.Deployment) -> None:
        """Cancel a deployment's job; on the driver's loop."""
        job_id = JobId(deployment.info.job_id)
        self.driver.post(
            JobEndRequested(job_id=job_id, outcome=JobState.CANCELLED, reason="a test")
        )

    def changed(self, action: RelocationChanged) -> None:
        """Note a relocation's progress."""
        self.changes.append(action)
        self.on_stage.pop(action.stage, lambda: None)()
        if action.stage in {RelocationStage.DONE, RelocationStage.FAILED}:
            self.ended.set()


def _is_agent(pid: int, node_id: str) -> bool:
    argv = command_of(pid)
    if "plexsvc.node.agent" not in argv:
        return False
    config = Path(argv[argv.index("--config") + 1])
    return f'node_id = "{node_id}"' in config.read_text()


class Gate:
    """Holds back the copying of a relocation's state until `open`."""

    def __init__(self, inner: InnerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = inner.loop
        self._entered, self._opened = threading.Event(), asyncio.Event()
        handler = inner.driver.handlers[CarryState]

        async def held(action: CarryState) -> Event | None:
            self._entered.set()
            await self._opened.wait()
            work = handler.perform(action)
            assert work is not None, action
            return await work

        monkeypatch.setitem(inner.driver.handlers, CarryState, replace(handler, perform=held))

    def wait_until_entered(self) -> None:
        """Return once the deployment is held."""
        assert self._entered.wait(120)

    def open(self) -> None:
        """Let the copying begin."""
        self._loop.call_soon_threadsafe(self._opened.set)


def node(
    node_id: str, *, train: int = 1, rollout: int = 0, device_bytes: int = 2 * MIB
) -> NodeConfig:
    """Return a node whose training devices hold one tiny trainer each."""
    devices = (DeviceConfig(kind="train", bytes_total=device_bytes),) * train
    devices += (DeviceConfig(kind="rollout", bytes_total=1024 * MIB),) * rollout
    return NodeConfig(
        node_id=node_id, devices=devices, host_bytes=2048 * MIB, staging_bytes=256 * MIB
    )


@contextlib.contextmanager
def start_inner(
    directory: Path, *, nodes: tuple[NodeConfig, ...], scheduler: SchedulerConfig | None = None
) -> Iterator[InnerCluster]:
    """Run a cluster on a thread of its own until the block ends."""
    config = ClusterConfig(
        state_dir=state_beside(directory),
        listen="127.0.0.1:0",
        nodes=nodes,
        scheduler=scheduler or SchedulerConfig(),
        router=RouterConfig(roots={"default": (ROOT,)}),
    )
    up, leave = threading.Event(), asyncio.Event()
    running: list[InnerCluster] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        async with EmbeddedCluster(config) as cluster:
            inner = InnerCluster(
                cluster.card.address,
                cluster.card.token,
                cluster.live,
                asyncio.get_running_loop(),
                read_keys(keys_file(config.state_dir)),
                config.state_dir,
            )
            listen(cluster.live, RelocationChanged, inner.changed)
            running.append(inner)
            up.set()
            await leave.wait()

    def run() -> None:
        try:
            loops.run(serve())
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    try:
        assert up.wait(120)
        assert running, failures
        yield running[0]
    finally:
        if running:
            running[0].loop.call_soon_threadsafe(leave.set)
        thread.join(120)
