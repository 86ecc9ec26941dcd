"""Check of what an instance sends: only tokens that it was asked for, each in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Final

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.events import Arrival
from plexsvc.rollout.engines.base import FINISH_ABORT

UNFINISHED: Final = (operations_pb2.FINISH_REASON_UNSPECIFIED, FINISH_ABORT)
"""Finish reasons that leave a sample incomplete."""


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

    def take(self, deltas: Iterable[operations_pb2.SampleDelta]) -> list[Arrival]:
        """Return deltas, in the order they came, as the core sees them. `O(tokens)`.

        An abort ends a call, never a sample.

        Raises:
            GarbageError: a delta that nobody asked for, that leaves a gap or repeats, or that holds
                ids outside the vocabulary or logprobs that are none.
        """
        arrivals = []  # reading a list is several times as fast as reading a repeated field
        for delta in deltas:
            key = (delta.prompt_index, delta.sample_index)
            due, position, tokens = self._due.get(key), delta.position, delta.token_ids[:]
            if due is None:
                raise GarbageError(f"a delta, without being asked, of sample {key}")
            wrong = "" if position == due else f"position {position} instead of {due}"
            if flaw := wrong or self._flaw(tokens, delta.logprobs[:]):
                raise GarbageError(f"{flaw} of sample {key}")
            count, reason = len(tokens), delta.finish_reason
            self._due[key] = due + count
            is_last = reason not in UNFINISHED
            arrivals.append(Arrival(key, position, count, is_last, reason == FINISH_ABORT))
        return arrivals

    def _flaw(self, tokens: Sequence[int], logprobs: Sequence[float]) -> str:
        if len(logprobs) != len(tokens):
            return f"{len(logprobs)} logprobs for {len(tokens)} tokens"
        if tokens and self._vocab_size and max(tokens) >= self._vocab_size:
            return f"token {max(tokens)}, with a vocabulary of {self._vocab_size},"
        return "a logprob that is no number" if isnan(sum(logprobs)) else ""
