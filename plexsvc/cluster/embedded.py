"""The embedded cluster: node agents, rewards, scheduler and router from one process.

Theory of operation. Coming up: take the lead (`leading`), open the store, start the agents and
rewards, run the scheduler, serve, publish the card. Going down is the same
in reverse, whatever stopped it. Agents and what they run outlive a kill -9 of this process. The
next cluster adopts them; while nobody does, nobody renews their leases, and they end after
`orphan_us`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.cluster import autoscaler, leading
from plexsvc.cluster.config import DEFAULT_TENANT, ClusterConfig, NodeConfig
from plexsvc.cluster.inner import STOP_GRACE_S, open_inner
from plexsvc.cluster.members import follow, renew_certificates
from plexsvc.cluster.places import (
    Card,
    keys_file,
    make_state_dir,
    read_card,
    remove_card,
    write_card,
)
from plexsvc.cluster.services import ServiceProcess
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.node import found
from plexsvc.node.config import AgentConfig, DeviceConfig, host_share
from plexsvc.node.examination import versions
from plexsvc.node.launchers.launcher import Launcher
from plexsvc.node.launchers.local import LocalLauncher
from plexsvc.node.launchers.ray import RayLauncher
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.rollout.managers import Managers
from plexsvc.rollout.spot import changes_of
from plexsvc.router.servicer import RouterServicer, add_to_server
from plexsvc.router.tls import client_tls
from plexsvc.rpc.channels import bind, new_server
from plexsvc.rpc.errors import first_failure
from plexsvc.rpc.keys import ClusterKeys, keep_keys
from plexsvc.scheduler.api.servicer import SchedulerServicer
from plexsvc.scheduler.driver.former import read_former
from plexsvc.scheduler.driver.snapshots import take_snapshot
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.leadership import Leadership
from plexsvc.store.opening import database_file, open_store
from plexsvc.store.rows import NodeRow
from plexsvc.store.store import Store

_MAX_RUNTIME_PATH: Final = 70
"""Longest runtime directory that leaves room for the name of a Unix socket in it (107 bytes)."""
_REWARD_PROCESSES: Final = (
    ("reward planner", "plexsvc.reward.planner"),
    ("reward proxy", "plexsvc.reward.main"),
)

log = Log(__name__)


def _with_rewards(config: ClusterConfig) -> tuple[NodeConfig, ...]:
    """Return the nodes; where none says what reward workers may hold, the first gives them all.

    Nodes of Ray are not known yet.
    """
    if config.launcher == "ray":
        return ()
    if any(device.kind == "reward" for node in config.nodes for device in node.devices):
        return config.nodes
    first, *others = config.nodes
    everything = DeviceConfig(
        kind="reward",
        cpus=config.reward.max_workers or os.cpu_count() or 1,
        bytes_total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    return (replace(first, devices=(*first.devices, everything)), *others)


class EmbeddedCluster:
    """A whole cluster in and below this process; use as an async context manager.

    Attributes:
        card: address and token, once entered.
        keeps: whether agents and what they run go on when this is left (`plexctl down --keep`).
        live: the scheduler, once entered.
    """

    card: Card
    live: LiveScheduler

    def __init__(self, config: ClusterConfig, *, waits: bool = False) -> None:
        """Serve by `config`; with `waits`, once nobody else does."""
        token = secrets.token_urlsafe(24)
        self._config = replace(config, nodes=_with_rewards(config))
        self._clock = SystemClock()
        self.keeps = False
        self._waits = waits
        self._tokens = config.tokens or {token: DEFAULT_TENANT}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Bring everything up.

        Raises:
            PlexError: `unavailable` when another cluster has the state directory or a part does
                not come up; `bad_request` for an address that cannot be listened on.
        """
        async with AsyncExitStack() as stack:
            await self._bring_up(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Take everything down; no process remains, but those that are kept."""
        return await self._stack.__aexit__(kind, failure, traceback)

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        state_dir = self._config.state_dir
        changes = changes_of(self._config.rollout.spot)
        make_state_dir(state_dir)
        url = self._config.database or f"sqlite:///{state_dir / 'plexsvc.db'}"
        goes_on = await self._lead(stack, url)
        former = None
        if goes_on or self._left_agents():
            former = await asyncio.to_thread(read_former, url)
            self._stay_where(read_card(state_dir))  # it stays there for whoever comes after us
            # Until this one serves: if it cannot take over, the next finds all as it was left.
            self.keeps = True
        else:
            remove_card(state_dir)
        store = await asyncio.to_thread(open_store, url, now_us=self._clock.wall_us())
        stack.callback(store.close)
        # When the stack unwinds: after the scheduler has ended, before the store is closed.
        stack.callback(self._write_snapshot, store)
        keys = keep_keys(keys_file(state_dir))
        launcher = await self._launch(stack, keys=keys, adopts=former is not None)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        rewards, proxy, rewarding = self._start_rewards(stack, tasks, adopts=former is not None)
        rollout = self._managers(keys)
        if former is None:  # else who waits for training need not wait for these
            await asyncio.gather(*rewarding)
        inner = open_inner(self._config, keys)
        live = LiveScheduler(
            self._config.scheduler,
            store,
            self._clock,
            [launcher.hosts[NodeId(node.node_id)].address for node in self._config.nodes],
            rollout,
            keys,
            former,
            added=self._added(store),
        )
        self.live, rollout.hosts = live, live.manager_hosts
        _run_beside(stack, tasks.create_task(self._run_live(live)))
        await live.ready()  # else managers would be sought on nodes that have not joined yet
        _run_beside(stack, tasks.create_task(rollout.run()))
        _run_beside(stack, tasks.create_task(live.reward_hosts.run(rewards, kill=proxy.kill)))
        spot = rollout.use(live.spot_hosts, changes, config=self._config.rollout.spot)
        _run_beside(stack, tasks.create_task(spot.run()))
        scheduler = SchedulerServicer(live)
        self._follow(stack, tasks, launcher, scheduler)
        await inner.serve(stack, scheduler)
        router = self._router(scheduler, keys=keys, rewards=rewards)
        stack.push_async_callback(router.aclose)
        await router.learn_tokens()
        _run_beside(stack, tasks.create_task(router.follow_tokens()))
        await self._serve(stack, router, inner=inner.address)
        self.keeps = False

    def _follow(
        self,
        stack: AsyncExitStack,
        tasks: asyncio.TaskGroup,
        launcher: Launcher,
        scheduler: SchedulerServicer,
    ) -> None:
        """Take hosts in as they come, and tell an autoscaler which are wanted."""
        _run_beside(stack, tasks.create_task(follow(launcher, self.live)))
        renewing = renew_certificates(self.live, clock=self._clock)
        _run_beside(stack, tasks.create_task(renewing))
        if self._config.autoscaler:
            look = partial(_look, scheduler)
            scaling = autoscaler.follow(self._config.autoscaler, look, clock=self._clock)
            _run_beside(stack, tasks.create_task(scaling))

    def _left_agents(self) -> bool:
        """Whether an earlier service may have left agents; of Ray's nodes its card alone tells."""
        state_dir = self._config.state_dir
        if self._config.launcher == "ray":
            return read_card(state_dir) is not None
        return bool(found.find_all(state_dir))

    def _added(self, store: Store) -> list[NodeRow]:
        configured = {node.node_id for node in self._config.nodes}
        return [row for row in store.nodes() if row.node_id not in configured]

    def _write_snapshot(self, store: Store) -> None:
        """Have the journal of a service that leaves what runs end with a snapshot.

        Another version reads that, but need not decide as this one did.
        """
        if self.keeps:
            try:
                take_snapshot(store.url, epoch=store.epoch)
            except PlexError as error:
                log.warning("no last snapshot; another version cannot take over", error=error)

    def _stay_where(self, card: Card | None) -> None:
        """Serve where the cluster did that was killed, under its token: its clients come back."""
        if card is None:
            return
        config, router = self._config, self._config.router
        if not config.tokens:
            self._tokens = {card.token: DEFAULT_TENANT}
        if config.listen.endswith(":0"):
            config = replace(config, listen=card.address)
        if config.scheduler_listen.endswith(":0"):
            config = replace(config, scheduler_listen=card.scheduler)
        if router.http_listen.endswith(":0"):
            router = replace(router, http_listen=card.http)
        self._config = replace(config, router=router)

    async def _launch(self, stack: AsyncExitStack, *, keys: ClusterKeys, adopts: bool) -> Launcher:
        """Start all agents at once, or have Ray's nodes start theirs.

        With `adopts`, those that an earlier service left go on.
        """
        launcher: LocalLauncher | RayLauncher
        if self._config.launcher == "ray":
            launcher = RayLauncher(
                self._config.ray,
                keys=keys,
                roots=self._config.router.model_roots,
                place=self._config.state_dir / "ray",
                clock=self._clock,
                adopts=adopts,
            )
        else:
            configs = [self._agent_config(node, stack) for node in self._config.nodes]
            launcher = LocalLauncher(configs, clock=self._clock, adopts=adopts)
        await stack.enter_async_context(launcher)

        def leave_agents() -> None:
            launcher.leaves = self.keeps

        stack.callback(leave_agents)
        return launcher

    async def _lead(self, stack: AsyncExitStack, url: str) -> bool:
        """Become the one that leads here; return whether to go on with what another one ran.

        Raises:
            PlexError: `unavailable` when another leads and this one does not wait.
        """
        state_dir, waits = self._config.state_dir, self._waits
        file = database_file(url)
        if file is not None:
            hold = partial(leading.hold, state_dir, stack, waits=waits, clock=self._clock)
            await hold()
            await hold(database=file)
            return False
        leadership = Leadership(url, holder=leading.name())
        lost, loop = asyncio.Event(), asyncio.get_running_loop()
        leadership.on_lost = partial(loop.call_soon_threadsafe, lost.set)
        stack.callback(lambda: leadership.close(ends_all=not self.keeps))
        await leading.lead(leadership, waits=waits, clock=self._clock)
        if waits:
            await leading.take_from_former(state_dir, stack, clock=self._clock)
        else:
            await leading.hold(state_dir, stack, waits=False, clock=self._clock)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        _run_beside(stack, tasks.create_task(self._until_lost(lost)))
        return waits and leadership.took_over

    async def _until_lost(self, lost: asyncio.Event) -> None:
        await lost.wait()
        self.keeps = True  # it is the other one's
        raise PlexError(ErrorCode.STALE_FENCE, "another service leads this cluster; this one stops")

    async def _run_live(self, live: LiveScheduler) -> None:
        try:
            await live.run()
        except* PlexError as group:
            cause = first_failure(group)
            if isinstance(cause, PlexError) and cause.code is ErrorCode.STALE_FENCE:
                self.keeps = True  # what runs is that one's
            raise

    def _keep_running(
        self,
        stack: AsyncExitStack,
        tasks: asyncio.TaskGroup,
        process: ServiceProcess,
        *,
        is_needed: bool,
    ) -> asyncio.Task[str]:
        """Start a process, and successors of it; return what ends when it serves first.

        One that is needed and does not start ends the service: its configuration may be why. That
        of a service that adopts has served before, and the jobs go on without the process.
        """
        stack.push_async_callback(process.stop)
        start = process.start if is_needed else process.start_or_be_replaced
        started = tasks.create_task(start())
        stack.callback(started.cancel)
        _run_beside(stack, tasks.create_task(process.replace(self._clock)))
        return started

    def _start_rewards(
        self, stack: AsyncExitStack, tasks: asyncio.TaskGroup, *, adopts: bool
    ) -> tuple[str, ServiceProcess, list[asyncio.Task[str]]]:
        """Start planner and proxy of rewards, keep them running; return proxy and address."""
        place = self._config.state_dir / "rewards"
        directory = _runtime_dir(place, stack)
        asked = self._config.reward
        told = {field.name: getattr(asked, field.name) for field in fields(asked)}
        told["listen"] = asked.listen or f"unix:{directory / 'proxy.sock'}"
        config = RewardServiceConfig(
            **told,
            on_nodes=True,
            keys_file=keys_file(self._config.state_dir),
            programs_dir=place.absolute() / "programs",
            planner=f"unix:{directory / 'planner.sock'}",
            history_dir=place.absolute() / "history",
        )
        planner, proxy = (
            ServiceProcess(name, module, config, directory=directory, logs=place)
            for name, module in _REWARD_PROCESSES
        )
        starting = [
            self._keep_running(stack, tasks, process, is_needed=not adopts)
            for process in (planner, proxy)
        ]
        return config.listen, proxy, starting

    def _managers(self, keys: ClusterKeys) -> Managers:
        """Return who leads the rollout managers."""
        place = self._config.state_dir / "rollout"
        place.mkdir(mode=0o700, exist_ok=True)
        return Managers(self._config.rollout, clock=self._clock, keys=keys, directory=place)

    def _agent_config(self, node: NodeConfig, stack: AsyncExitStack) -> AgentConfig:
        place = self._config.state_dir / "nodes" / node.node_id
        return AgentConfig(
            node_id=node.node_id,
            devices=node.devices,
            runtime_dir=self._kept_dir(place, stack),
            log_dir=place / "logs",
            keep_pages=node.keep_pages,
            listen=f"{node.address}:0" if node.address else "",
            keys_file=keys_file(self._config.state_dir),
            **host_share(node),
        )

    def _kept_dir(self, place: Path, stack: AsyncExitStack) -> Path:
        """Return a directory for sockets that stays if what uses it is kept."""
        made = ExitStack()
        directory = _runtime_dir(place, made)
        stack.callback(self._unless_kept, made.close)
        return directory

    def _unless_kept(self, end: Callable[[], None]) -> None:
        if not self.keeps:
            end()

    def _router(
        self,
        scheduler: SchedulerServicer,
        *,
        keys: ClusterKeys,
        rewards: str,
    ) -> RouterServicer:
        first = next(iter(self._tokens.values()))
        operators = self._config.router.operators or (first,)
        state_dir, named = self._config.state_dir.absolute(), self._config.router
        config = replace(
            named,
            tokens=self._tokens,
            operators=operators,
            reward=rewards,
            model_roots=self._model_roots(),
            checkpoint_root=named.checkpoint_root or state_dir / "checkpoints",
        )
        return RouterServicer(scheduler, config=config, clock=self._clock, keys=keys)

    async def _serve(self, stack: AsyncExitStack, router: RouterServicer, *, inner: str) -> None:
        config = self._config.router
        server = new_server(
            router.tenants, max_calls=config.max_calls, max_connections=config.max_connections
        )
        add_to_server(router, server)
        address = bind(server, self._config.listen, client_tls(self._config.router), key="listen")
        stack.push_async_callback(server.stop, STOP_GRACE_S)
        stack.callback(router.stop)
        await server.start()
        http = await stack.enter_async_context(router.http())
        token = next(iter(self._tokens))
        self.card = Card(
            address=address,
            http=http,
            token=token,
            pid=os.getpid(),
            scheduler=inner,
            ca=str(self._config.router.tls_cert or ""),
            controller_user=self._config.controllers.get(self._tokens[token], ""),
            versions=versions(),
            roots=list(map(str, self._config.router.model_roots)),
        )
        stack.callback(self._unless_kept, partial(remove_card, self._config.state_dir))
        write_card(self._config.state_dir, self.card)

    def _model_roots(self) -> tuple[Path, ...]:
        """Return where models lie: as configured, or a directory of the state's."""
        if self._config.router.model_roots:
            return self._config.router.model_roots
        models = self._config.state_dir.absolute() / "models"
        models.mkdir(mode=0o700, exist_ok=True)
        return (models,)


async def _look(scheduler: SchedulerServicer) -> dict[str, Any]:
    """Return what an autoscaler is told now."""
    pack = await scheduler.call("GetPack", pb.PackRequest(is_operator=True), pb.PackReply)
    asked = pb.ListNodesRequest(is_operator=True)
    return autoscaler.told(pack, await scheduler.call("ListNodes", asked, pb.ListNodesReply))


def _run_beside(stack: AsyncExitStack, task: asyncio.Task[None]) -> None:
    """Cancel `task`, which runs for the cluster's life, when the stack unwinds."""
    stack.callback(task.cancel)


def _runtime_dir(place: Path, stack: ExitStack | AsyncExitStack) -> Path:
    """Return a directory for sockets: in `place`, or a temporary one where its path is too long.

    A link in `place` leads to the temporary one, so that the next cluster finds it.
    """
    inside = place.absolute() / "run"
    if len(os.fsencode(inside)) <= _MAX_RUNTIME_PATH:
        return inside
    if not inside.exists():
        # A link whose directory is gone.
        inside.unlink(missing_ok=True)
        inside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        inside.symlink_to(tempfile.mkdtemp(prefix="plexsvc-"))
    stack.callback(shutil.rmtree, inside.readlink(), ignore_errors=True)
    return inside.readlink()
