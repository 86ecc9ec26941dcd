"""Steps of a vLLM core, which may have batches in flight: scheduled, and not yet read.

vLLM keeps such batches where it schedules asynchronously, or over pipeline stages. A step then
schedules one batch and reads another, or reads none. Weights and memory that a batch in flight
computes with may not be changed: it is read first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import vllm.v1.engine.core as vllm_core
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutputs

Outputs = Mapping[int, EngineCoreOutputs]


def has_work(core: vllm_core.EngineCore) -> bool:
    """Return whether the core has requests, or a batch that was not read."""
    return core.scheduler.has_requests() or bool(core.batch_queue)


def step(core: vllm_core.EngineCore) -> Outputs:
    """Run one step; return the outputs of the batch that was read, if any was."""
    outputs, ran = core.step_fn()
    core.post_step(ran)
    return outputs or {}


def drain(core: vllm_core.EngineCore) -> Iterator[Outputs]:
    """Read the batches in flight and schedule none; yield their outputs."""
    scheduler, before = core.scheduler, core.scheduler.pause_state
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    try:
        while any(batch.total_num_scheduled_tokens for _, batch, _ in core.batch_queue or ()):
            yield step(core)
    finally:
        scheduler.set_pause_state(before)
