"""A state manager under the agent's real sidecar: killed at will, asked until one answers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import grpc

from plexclient.wire.v1 import statemanager_pb2_grpc
from plexsvc.node.config import AgentConfig, DeviceConfig
from plexsvc.node.sidecar import Sidecar, SidecarAddress
from plexsvc.node.vault import Vault
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.statelink.dataplane import Message
from tests.rigs.keys import KEYS, keys_file
from tests.rigs.state_daemon import DEADLINE_S, Daemon

MIB: Final = 1 << 20


class WatchedVault(Vault):
    """Calls `on_record` with the number of each record, before it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.on_record: Callable[[int, Message], None] = lambda _count, _message: None

    @property
    def kinds(self) -> list[str]:
        return sorted(key[0] for key in self._kept)

    def spoil(self, kind: str) -> None:
        """Flip a bit of each record of a kind."""
        for key, kept in list(self._kept.items()):
            if key[0] == kind:
                body = bytes([kept.body[0] ^ 1]) + kept.body[1:]
                self._kept[key] = Message(header=kept.header, body=body, fds=kept.fds)

    def _take(self, message: Message) -> None:
        self.count += 1
        self.on_record(self.count, message)
        super()._take(message)


class KeptDaemon(Daemon):
    """Stands for the node agent: its sidecar runs in a thread of this process."""

    def __init__(
        self, directory: Path, stack: ExitStack, *, memory: str = "cpu", **config: Any
    ) -> None:
        """`memory` is that of its devices; for `cuda` a GPU must be there, real or not."""
        self._stack = stack
        nbytes, gpu = (4 * MIB, None) if memory == "cpu" else (32 * MIB, 0)
        device = DeviceConfig(kind="train", memory=memory, gpu=gpu, bytes_total=nbytes)
        self._config = AgentConfig(
            node_id="n0",
            devices=(device,) * 2,
            runtime_dir=directory,
            keys_file=keys_file(directory),
            staging_bytes=1 * MIB,
            **{"host_bytes": 64 * MIB, **config},
        )
        self.vault = WatchedVault()
        self.idle = ["numbers"] if memory == "cuda" else ["arena", "arena", "numbers"]
        """What is kept of a node on which nothing is."""
        self.lost = 0
        self.restarts = 0
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        thread.start()
        stack.callback(self._loop.close)
        stack.callback(thread.join)
        stack.callback(self._loop.call_soon_threadsafe, self._cancel)
        assert self._started.wait(DEADLINE_S)
        where = self.sidecar.where
        assert where is not None
        self.ready = {"address": where.address, "data_socket": where.data_socket}
        channel = stack.enter_context(open_blocking_channel(where.address, KEYS))
        self.stub = Persistent(statemanager_pb2_grpc.StateManagerStub(channel))  # type: ignore[assignment]

    @property
    def pid(self) -> int:
        assert self.sidecar._process is not None
        return self.sidecar._process.pid

    def kill(self, *, wait: bool = True, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the state manager, -9 by default; return when its successor serves, if asked."""
        before = self.restarts
        os.kill(self.pid, number)
        deadline_s = time.monotonic() + DEADLINE_S
        while wait and self.restarts == before:
            assert time.monotonic() < deadline_s, "no successor"
            time.sleep(0.01)  # noqa: TID251 - waits for another thread, not for time to pass

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        self.sidecar = Sidecar(
            self._config,
            log_dir=self._config.runtime_dir,
            on_lost=self._on_lost,
            on_restarted=self._on_restarted,
        )
        self.sidecar._vault = self.vault
        await self.sidecar.start()
        self._started.set()
        with suppress(asyncio.CancelledError):
            await self.sidecar.run()

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _on_lost(self) -> None:
        self.lost += 1

    def _on_restarted(self, where: SidecarAddress) -> None:
        del where
        self.restarts += 1


class Persistent:
    """A stub whose calls are repeated while nobody answers, as the scheduler does."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._stub, name)

        def call(request: Any, *, timeout: float) -> Any:
            deadline_s = time.monotonic() + timeout
            while True:
                try:
                    return method(request, timeout=timeout, wait_for_ready=True)
                except grpc.RpcError as error:
                    is_over = time.monotonic() > deadline_s
                    if is_over or error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise

        return call
