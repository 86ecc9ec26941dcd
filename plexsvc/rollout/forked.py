"""Entrypoint of what the rollout zygote forks: an instance, or an engine that adapters share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from plexsvc import config as config_files
from plexsvc import log as logs
from plexsvc.paths import model_view
from plexsvc.rollout import instance, seats
from plexsvc.rollout.config import InstanceConfig
from plexsvc.weights.checkpoints import check_model


def main(config: dict[str, Any], ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM."""
    logs.setup()
    parsed = config_files.parse(config, InstanceConfig, where="rollout instance")
    with model_view(parsed.model, root=parsed.model_root, socket=parsed.data_socket) as model:
        check_model(Path(model))
        parsed = replace(parsed, model=model)
        if parsed.lora_rank:
            asyncio.run(seats.run_vllm(parsed, ready, opener=seats.opening))
            return
        asyncio.run(instance.run_vllm(parsed, ready, opener=seats.opening))
