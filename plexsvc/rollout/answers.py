"""Check of what an instance sends: only tokens that it was asked for, each in its place."""

from __future__ import annotations

import math
from collections.abc import Iterable

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode, PlexError


class GarbageError(PlexError):
    """An instance sent what no engine in order sends."""

    def __init__(self, flaw: str) -> None:
        super().__init__(ErrorCode.INTERNAL, f"it sent garbage: {flaw}")


class Answers:
    """The samples of one call, and where each stands."""

    def __init__(self, requests: Iterable[rollout_pb2.InstanceRequest], *, vocab_size: int) -> None:
        """Take ids below `vocab_size`; 0: any."""
        self._due = {
            (one.prompt_index, one.sample_index): len(one.prompt.generated) for one in requests
        }
        self._vocab_size = vocab_size

    def check(self, deltas: Iterable[operations_pb2.SampleDelta]) -> None:
        """Take note of deltas in the order they came. `O(tokens)`.

        Raises:
            GarbageError: a delta that nobody asked for, that leaves a gap or repeats, or that holds
                ids outside the vocabulary or logprobs that are none.
        """
        for delta in deltas:
            key = (delta.prompt_index, delta.sample_index)
            if flaw := self._flaw(delta, due=self._due.get(key)):
                raise GarbageError(f"{flaw} of sample {key}")
            self._due[key] += len(delta.token_ids)

    def _flaw(self, delta: operations_pb2.SampleDelta, *, due: int | None) -> str:
        tokens = delta.token_ids
        if due is None:
            return "a delta, without being asked,"
        if delta.position != due:
            return f"position {delta.position} instead of {due}"
        if tokens and self._vocab_size and max(tokens) >= self._vocab_size:
            return f"token {max(tokens)}, with a vocabulary of {self._vocab_size},"
        if len(delta.logprobs) != len(tokens):
            return f"{len(delta.logprobs)} logprobs for {len(tokens)} tokens"
        if math.isnan(sum(delta.logprobs)):
            return "a logprob that is no number"
        return ""
