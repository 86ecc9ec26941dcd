"""Invariants of a rollout core, which hold after every event."""

from __future__ import annotations

from plexsvc.rollout.core.events import InstanceId
from plexsvc.rollout.core.instances import Phase
from plexsvc.rollout.core.machine import RolloutCore


def check(core: RolloutCore) -> None:
    """Assert the invariants. `O(instances + samples)`."""
    loads: dict[InstanceId, int] = {}
    contexts: dict[InstanceId, int] = {}
    turns: dict[InstanceId, int] = {}
    for operation_id, generate in core.generates.items():
        waiting = set(generate.waiting)
        assert len(waiting) == len(generate.waiting), "a sample waits once"
        left = 0
        for key, sample in generate.samples.items():
            held = sample.instance_id
            if sample.is_complete:
                assert held is None, (operation_id, key)
                continue
            left += 1
            assert (held is not None) != (key in waiting), (operation_id, key)
            if held is not None:
                loads[held] = loads.get(held, 0) + 1
                turns[held] = turns.get(held, 0) + generate.is_turn
                context = sample.prompt_tokens + sample.num_tokens
                contexts[held] = contexts.get(held, 0) + context
        assert generate.incomplete == left
        assert all(not generate.samples[key].is_complete for key in waiting)
    assert core.spared <= set(core.instances)
    batches = [one for one in core.generates.values() if not one.is_turn]
    assert batches or not core.spared, "without generates every instance is there for the next"
    assert not core.window.is_closing or not core.staying(), "a closed window leaves nobody behind"
    for one, instance in core.instances.items():
        assert instance.phase is not Phase.GONE
        assert instance.load == loads.get(one, 0), "a load counts the incomplete samples"
        assert instance.turns == turns.get(one, 0)
        assert instance.context_tokens == contexts.get(one, 0)
        assert len(instance.pending) <= core.max_pending
        for operation_id, key in instance.pending:
            assert core.generates[operation_id].samples[key].instance_id == one
        if instance.phase is Phase.DRAINING:
            assert instance.load, "a drained instance without samples is released"
        if instance.is_serving:
            assert instance.version == core.version
            if len(instance.pending) < core.max_pending and not instance.rests:
                takes_turns = instance.turns < instance.turn_cap
                has_place = len(instance.pending) + core.portion <= core.max_pending
                takes_batches = has_place and one not in core.spared
                idle = [g for g in core.generates.values() if g.waiting and not g.is_held]
                assert not any(takes_turns if g.is_turn else takes_batches for g in idle)
