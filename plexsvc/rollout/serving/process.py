"""The process of a serving engine: vLLM's OpenAI application, and the owner's switches."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from plexsvc import log as logs
from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.serving.config import ServingConfig, check_fits
from plexsvc.rollout.serving.control import switches
from plexsvc.rollout.serving.engine import ServingEngine
from plexsvc.weights.checkpoints import check_model

log = logs.Log(__name__)

Ready = Callable[[str], None]


def check(config: ServingConfig, *, available_bytes: int) -> None:
    """Refuse what cannot be served, before anything starts.

    Raises:
        PlexError: `unknown_model`, `bad_request`.
    """
    for model in (config.model, config.guest):
        if model is not None:
            check_model(Path(model))
    check_fits(config, available_bytes=available_bytes)


def main(config: ServingConfig, *, ready: Ready) -> None:
    """Serve until TERM or Ctrl-C; vLLM was imported before (`preload`).

    Raises:
        PlexError: `bad_request` for a port that is taken, or what vLLM cannot run.
    """
    logs.setup()
    try:
        listener = socket.create_server((config.host, config.port))
    except OSError as error:
        text = f"port: cannot listen on {config.host}:{config.port}: {error.strerror}"
        raise PlexError(ErrorCode.BAD_REQUEST, text, field="port") from error
    with listener:
        asyncio.run(serve(config, listener, ready=ready, clock=SystemClock()))


async def serve(
    config: ServingConfig, listener: socket.socket, *, ready: Ready, clock: Clock
) -> None:
    """Serve until told to end; `ready` is given the address.

    Raises:
        PlexError: what vLLM cannot run.
    """
    import uvicorn  # noqa: PLC0415 - comes with vLLM, so only where that is

    engine = await ServingEngine.start(config, clock=clock)
    offered = {"lend": engine.lend, "reclaim": engine.reclaim, "report": engine.report}
    server = uvicorn.Server(uvicorn.Config(await engine.app(), log_level="error"))
    try:
        async with switches(config.socket, offered):
            host, port = listener.getsockname()[:2]
            log.info("serving", name=config.name, port=port, lends=config.guest is not None)
            ready(f"http://{host}:{port}/v1")  # it listens already: what comes now waits
            await server.serve([listener])
    finally:
        await engine.close()
