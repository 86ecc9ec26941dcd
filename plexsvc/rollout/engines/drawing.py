"""Sampling as a function of (seed, position) in each of vLLM's model runners.

Runner V2 (CUDA) computes its noise from a request's seed and the absolute position of the token:
nothing is to be done there. Runner V1 (CPU) draws from one generator a request, which runs on: it
is seeded anew before each step.
"""

from __future__ import annotations

from typing import Any, Final

from plexsvc.errors import bad_request
from plexsvc.rollout.sampling import draw_seed

DRAW_ORIGIN: Final = "plex_draw_origin"
"""Key of a request's extra arguments: the position in the sequence that draw 0 belongs to."""
GENERATED: Final = "plex_generated"
"""Key of a request's extra arguments: the tokens of the answer that it came with."""


def draw_by_position(runner: Any) -> None:
    """Make the draws of a model runner depend on nothing but seed and position.

    Raises:
        PlexError: `bad_request` for a runner that is neither; its samples could not be moved.
    """
    states = getattr(getattr(runner, "sampler", None), "sampling_states", None)
    if hasattr(states, "seeds"):
        return  # V2
    if not (hasattr(runner, "_update_states") and hasattr(runner, "_bookkeeping_sync")):
        kind = f"{type(runner).__module__}.{type(runner).__qualname__}"
        raise bad_request(
            f"model runner {kind} of this vLLM is not known: whether it draws by seed and position "
            "is not known either; use the pinned vLLM (requirements/)"
        )
    _reseed_each_step(runner)


def _reseed_each_step(runner: Any) -> None:
    """Reseed each request's generator before each step from (seed, position of its next token)."""
    update_states, bookkeep = runner._update_states, runner._bookkeeping_sync
    add_request = runner.input_batch.add_request

    def add_with_answer(state: Any) -> Any:
        # As a preempted request has them: penalties count them as the answer's, not the prompt's.
        extra = getattr(state.sampling_params, "extra_args", None) or {}
        if not state.output_token_ids:
            state.output_token_ids.extend(extra.get(GENERATED, ()))
        return add_request(state)

    def update_and_seed(scheduled: Any) -> Any:
        result = update_states(scheduled)
        for request_id, count in scheduled.num_scheduled_tokens.items():
            state = runner.requests[request_id]
            if state.generator is not None:
                origin = state.sampling_params.extra_args[DRAW_ORIGIN]
                position = max(0, state.num_computed_tokens + count - origin)
                seed = draw_seed(state.sampling_params.seed, position=position)
                state.generator.manual_seed(seed)
        return result

    def bookkeep_without_rewind(*args: Any, **kwargs: Any) -> Any:
        # A draw for an unfinished prefill is normally taken back, which CPU generators cannot do.
        batch = runner.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return bookkeep(*args, **kwargs)
        finally:
            batch.generators = generators

    runner.input_batch.add_request = add_with_answer
    runner._update_states = update_and_seed
    runner._bookkeeping_sync = bookkeep_without_rewind
