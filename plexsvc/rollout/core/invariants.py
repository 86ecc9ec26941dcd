"""Invariants of a rollout core, which hold after every event."""

from __future__ import annotations

from collections import Counter

from plexsvc.rollout.core.events import InstanceId
from plexsvc.rollout.core.instances import Phase
from plexsvc.rollout.core.machine import RolloutCore


def check(core: RolloutCore) -> None:
    """Assert the invariants. `O(instances + samples)`."""
    loads: Counter[InstanceId] = Counter()
    contexts: Counter[InstanceId] = Counter()
    for operation_id, generate in core.generates.items():
        waiting = set(generate.waiting)
        assert len(waiting) == len(generate.waiting), "a sample waits once"
        left = {key: one for key, one in generate.samples.items() if not one.is_complete}
        assert generate.incomplete == len(left)
        for key, sample in generate.samples.items():
            held = sample.instance_id
            assert (held is not None) + (key in waiting) == (key in left), (operation_id, key)
            if held is not None:
                loads[held] += 1
                contexts[held] += sample.prompt_tokens + sample.num_tokens
    for one, instance in core.instances.items():
        assert instance.phase is not Phase.GONE
        assert instance.load == loads[one], "a load counts the incomplete samples"
        assert instance.context_tokens == contexts[one]
        assert len(instance.pending) <= core.max_pending
        for operation_id, key in instance.pending:
            assert core.generates[operation_id].samples[key].instance_id == one
        if instance.phase is Phase.DRAINING:
            assert instance.load, "a drained instance without samples is released"
        if instance.is_serving:
            assert instance.version == core.version
            has_room = len(instance.pending) < core.max_pending
            assert not (has_room and any(g.waiting for g in core.generates.values()))
