"""The vLLM adapter: the only code that imports vllm."""

from __future__ import annotations

from plexsvc.rollout.engines.vllm.core import VllmConfig, config_of
from plexsvc.rollout.engines.vllm.engine import VllmEngine

__all__ = ["VllmConfig", "VllmEngine", "config_of"]
