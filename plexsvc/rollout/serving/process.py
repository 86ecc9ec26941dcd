"""The process of a serving engine: vLLM's OpenAI application, and the owner's switches."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from plexsvc import log as logs
from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import bad_request
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.instance import InstanceServicer, serving_instance
from plexsvc.rollout.serving.announcing import Announcer, Tell
from plexsvc.rollout.serving.config import ServingConfig, check_fits
from plexsvc.rollout.serving.control import check_free, guest_socket, switches
from plexsvc.rollout.serving.engine import ServingEngine
from plexsvc.statelink.opening import VersionOpener
from plexsvc.weights.checkpoints import check_model

if TYPE_CHECKING:
    from plexsvc.rollout.engines.vllm import VllmEngine

log = logs.Log(__name__)

Ready = Callable[[str], None]


def check(config: ServingConfig, *, available_bytes: int) -> None:
    """Refuse what cannot be served, before anything starts.

    Raises:
        PlexError: `unknown_model`, `bad_request`.
    """
    for model in (config.model, *config.guests):
        check_model(model)
    check_fits(config, available_bytes=available_bytes)
    check_free(config.socket)


def listening(config: ServingConfig) -> socket.socket:
    """Return the socket that clients will reach, before the seconds that vLLM takes to import.

    Raises:
        PlexError: `bad_request` for a port that is taken.
    """
    try:
        return socket.create_server((config.host, config.port))
    except OSError as error:
        raise bad_request(
            f"port: cannot listen on {config.host}:{config.port}: {error.strerror}", field="port"
        ) from error


def main(
    config: ServingConfig, listener: socket.socket, *, ready: Ready, tell: Tell | None = None
) -> None:
    """Serve until TERM or Ctrl-C; vLLM was imported before (`preload`).

    With `tell` the cluster hears of the guests while they are lent.

    Raises:
        PlexError: `bad_request` for what vLLM cannot run.
    """
    logs.setup()
    asyncio.run(serve(config, listener, ready=ready, tell=tell, clock=SystemClock()))


async def serve(
    config: ServingConfig,
    listener: socket.socket,
    *,
    ready: Ready,
    tell: Tell | None,
    clock: Clock,
) -> None:
    """Serve until told to end; `ready` is given the address.

    Raises:
        PlexError: what vLLM cannot run.
    """
    import uvicorn

    engine = await ServingEngine.start(config, clock=clock)
    offered = {"lend": engine.lend, "reclaim": engine.reclaim, "report": engine.report}
    server = uvicorn.Server(uvicorn.Config(await engine.app(), log_level="error"))
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(switches(config.socket, offered))
            if config.keys_file is not None:
                for place, guest in enumerate(engine.guests):
                    instance = _as_instance(engine, guest, place, tell, clock=clock)
                    await stack.enter_async_context(instance)
            host, port = listener.getsockname()[:2]
            log.info("serving", name=config.name, port=port, lends=bool(config.guests))
            ready(f"http://{host}:{port}/v1")  # it listens already: what comes now waits
            with _ending_in_order():
                await server.serve([listener])
    finally:
        await engine.close()


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let TERM end uvicorn alone: it raises the signal again, and what follows would not run."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@asynccontextmanager
async def _as_instance(
    engine: ServingEngine, guest: VllmEngine, place: int, tell: Tell | None, *, clock: Clock
) -> AsyncIterator[None]:
    """Let the cluster's rollout managers use a guest as they use any instance."""
    config = engine.config
    assert config.keys_file is not None
    own = f"unix:{guest_socket(config.socket, place)}"
    facts = InstanceConfig(
        wpg_id=f"serving/{config.guest_names[place]}",
        rank=0,
        incarnation=0,
        scheduler_epoch=0,
        tenant="",
        job_id="",
        deployment_id="",
        model=str(config.guests[place]),
        listen=config.instances[place] if config.instances else own,
        keys_file=config.keys_file,
    )
    with contextlib.closing(VersionOpener(facts)) as opener:
        servicer = InstanceServicer(guest, facts, clock=clock, open_version=opener.open)
        async with serving_instance(servicer, guest, facts) as address:
            engine.instances.append(address)
            if tell is None:
                yield
                return
            announcer = Announcer(config, place, address, tell, is_lent=engine.is_lent)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(announcer.run(clock))
                try:
                    yield
                finally:
                    running.cancel()  # withdrawn before its instance ends
