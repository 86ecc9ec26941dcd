"""Registry of backends by name; each is imported when it is built."""

from __future__ import annotations

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.backends.base import Backend
from plexsvc.worker.config import WorkerConfig


def create(config: WorkerConfig) -> Backend:
    """Return the backend `config` names, not yet built.

    Raises:
        PlexError: `bad_request` for an unknown name.
    """
    match config.backend:
        case "megatron":
            from plexsvc.worker.backends.megatron import shim

            shim.install()
            from plexsvc.worker.backends.megatron.backend import MegatronBackend

            return MegatronBackend(config)
        case "fsdp":
            if config.lora is not None:
                from plexsvc.worker.backends.fsdp_lora import LoraBackend

                return LoraBackend(config)
            from plexsvc.worker.backends.fsdp import FsdpBackend

            return FsdpBackend(config)
        case "noop":
            from plexsvc.worker.backends.noop import NoopBackend

            return NoopBackend(config)
        case _:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"backend {config.backend!r} is not known; training deployments use megatron, "
                "fsdp or noop",
                backend=config.backend,
            )
