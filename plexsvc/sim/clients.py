"""Clients of a virtual driver: jobs, nodes and operators, which post events and read answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    DeploymentChanged,
    JobChanged,
    RefuseOperation,
)
from plexsvc.scheduler.core.events import Event

Answer = AnswerOperation | RefuseOperation | DeploymentChanged | JobChanged


def subject_of(answer: Answer) -> JobId | DeploymentId | OperationId:
    """Return what an answer is about."""
    match answer:
        case AnswerOperation() | RefuseOperation():
            return answer.operation_id
        case DeploymentChanged():
            return answer.deployment_id
        case JobChanged():
            return answer.job_id


@dataclass(frozen=True, slots=True)
class Post:
    """An event of a client. It happens at `at_us`, or at once if that is past."""

    at_us: int
    event: Event
    tag: int = 0
    """The client's own mark, given back with the event."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A time at which a client wants to be woken. The core sees nothing of it."""

    at_us: int
    tag: int = 0
    wakes: Client | None = None
    """Whom it wakes if not the client that set it."""


Posts = Iterable[Post | Alarm]


class Client(ABC):
    """A source of events: a job, an operator or the nodes."""

    is_background: ClassVar[bool] = False
    """Whether its events go on without end: a run is over without them."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether it waits for nothing and posts nothing more."""

    @abstractmethod
    def begin(self) -> Posts:
        """Return its first events."""

    def happened(self, event: Event, *, tag: int) -> Posts:  # noqa: ARG002 - for those who care
        """Return what it posts because one of its own events was decided."""
        return ()

    def told(self, answer: Answer, *, now_us: int) -> Posts:  # noqa: ARG002 - for those who care
        """Return what it posts because of an answer."""
        return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:  # noqa: ARG002 - for those who care
        """Return what it posts because an alarm rang."""
        return ()


@dataclass(slots=True, kw_only=True)
class Outside(Client):
    """Nodes, operators and faults whose times are known, whatever the jobs do."""

    events: Sequence[Event]
    _left: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all of it has happened."""
        return self._left == 0

    def begin(self) -> Posts:
        """Return all of it."""
        self._left = len(self.events)
        return [Post(event.at_us, event) for event in self.events]

    def happened(self, event: Event, *, tag: int) -> Posts:  # noqa: ARG002 - as every client
        """Count it."""
        self._left -= 1
        return ()
