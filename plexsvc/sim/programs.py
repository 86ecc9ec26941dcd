"""Programs of live jobs: which event follows how long after which answers.

What a client posted waits for its previous post and for the answers that came in between (older
ones its previous posts waited for); the rest of the time it thought, or its tools worked. Posts
that nothing waits for (payloads, acknowledgements) are branches of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import DeploymentId, OperationId
from plexsvc.scheduler.core.events import (
    Acknowledged,
    Event,
    OperationSubmitted,
    PayloadRefused,
    PayloadStaged,
    PayloadUnderWay,
)
from plexsvc.sim.clients import Client, Key, Post, Posts, Reply, Subject, What
from plexsvc.sim.observed import Moment

RETRY_US: Final = 50_000
"""Pause before a client submits again what was refused for now."""

_AGAIN: Final = -1
"""Tag of such a repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One post: `think_us` after the last of `after`, or at its own time without any."""

    key: Key
    event: Event
    after: tuple[Key, ...]
    think_us: int


def program_of(moments: Sequence[Moment]) -> tuple[Step, ...]:
    """Return the posts of one job's moments, each with what it waits for."""
    extractor = _Extractor()
    return tuple(step for moment in moments if (step := extractor.take(moment)) is not None)


class _Extractor:
    """Reads a job's moments in order."""

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._last: Key | None = None
        self._answers: list[Key] = []
        self._submitted: dict[OperationId, Key] = {}
        self._by_seq: dict[tuple[DeploymentId, int], Key] = {}

    def take(self, moment: Moment) -> Step | None:
        """Return the step of a post; `None` for an answer."""
        event = moment.event
        if event is None:
            if moment.key not in self._times:  # a move to other devices announces READY again
                self._times[moment.key] = moment.at_us
                self._answers.append(moment.key)
            return None
        after = self._after(event)
        if not isinstance(event, PayloadUnderWay | PayloadStaged | PayloadRefused | Acknowledged):
            self._last, self._answers = moment.key, []
        if isinstance(event, OperationSubmitted):
            self._submitted[event.operation_id] = moment.key
            answered = Key(What.ANSWERED, event.operation_id.hex())
            self._by_seq[event.deployment_id, event.seq] = answered
        self._times[moment.key] = moment.at_us
        since_us = max((self._times[key] for key in after), default=moment.at_us)
        return Step(key=moment.key, event=event, after=after, think_us=moment.at_us - since_us)

    def _after(self, event: Event) -> tuple[Key, ...]:
        if isinstance(event, PayloadUnderWay | PayloadStaged | PayloadRefused):
            found = self._submitted.get(event.operation_id)
        elif isinstance(event, Acknowledged):
            found = self._by_seq.get((event.deployment_id, event.seq))
        else:
            before = () if self._last is None else (self._last,)
            return (*before, *self._answers)
        if found is not None and found in self._times:
            return (found,)
        return () if self._last is None else (self._last,)


@dataclass(slots=True)
class _Pending:
    step: Step
    tag: int
    missing: int


@dataclass(slots=True, kw_only=True)
class ProgramClient(Client):
    """Plays one job's program; notes when it began and when it was answered last."""

    steps: Sequence[Step]
    begun_us: int | None = None
    answered_us: int = 0
    _waiting: dict[Key, list[_Pending]] = field(default_factory=dict)
    _unposted: int = 0
    _unanswered: set[Key] = field(default_factory=set)
    _submitted: dict[Subject, OperationSubmitted] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether everything was posted and every operation answered."""
        return not self._unposted and not self._unanswered

    def begin(self) -> Posts:
        """Return what waits for nothing."""
        self._unposted = len(self.steps)
        ready = []
        for tag, step in enumerate(self.steps):
            if not step.after:
                ready.append(Post(step.event.at_us, step.event, tag))
            pending = _Pending(step, tag, len(step.after))
            for key in step.after:
                self._waiting.setdefault(key, []).append(pending)
        return ready

    def happened(self, event: Event, *, tag: int) -> Posts:
        """Return what follows a post."""
        if self.begun_us is None:
            self.begun_us = event.at_us
        if tag == _AGAIN:
            return ()
        if isinstance(event, OperationSubmitted):
            self._submitted[event.operation_id] = event
            self._unanswered.add(Key(What.ANSWERED, event.operation_id.hex()))
        self._unposted -= 1
        return self._settle(self.steps[tag].key, now_us=event.at_us)

    def told(self, answer: Reply, *, now_us: int) -> Posts:
        """Return what follows an answer; what was refused for now is submitted again."""
        if answer.what is What.TURNED_AWAY:
            again = self._submitted.get(answer.subject)
            if again is None:
                return ()
            return (Post(now_us + RETRY_US, again, _AGAIN),)
        key = answer.key
        if key is None:
            return ()
        if key.what is What.ANSWERED:
            self.answered_us = now_us
        self._unanswered.discard(key)
        return self._settle(key, now_us=now_us)

    def _settle(self, key: Key, *, now_us: int) -> list[Post]:
        posts: list[Post] = []
        for pending in self._waiting.pop(key, ()):
            pending.missing -= 1
            if pending.missing == 0:
                step = pending.step
                posts.append(Post(now_us + step.think_us, step.event, pending.tag))
        return posts
