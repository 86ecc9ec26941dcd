"""Clients of a virtual driver: jobs, nodes and operators, which post events and read answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

from plexsvc.errors import RETRYABLE
from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.actions import (
    Action,
    AnswerOperation,
    DeploymentChanged,
    JobChanged,
    RefuseOperation,
)
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault

ENDED: Final = frozenset({"completed", "failed", "cancelled"})

Subject = JobId | DeploymentId | OperationId


class What(StrEnum):
    """What a moment of a job is."""

    SENT = "sent"
    TURNED_AWAY = "turned away"
    """An operation, for now: its client submits it again."""
    ANSWERED = "answered"
    PLACED = "placed"
    READY = "ready"
    """Or failed, or stopped: a deployment does not start any more."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Key:
    """What happens once in a job's life: a post, by its row of the journal, or an id's answer."""

    what: What
    of: int | str


class Reply(NamedTuple):
    """What a client is told about an operation, a deployment or a job."""

    what: What
    subject: Subject
    fault: Fault | None = None
    run_us: int = 0
    is_placed: bool = False

    @property
    def key(self) -> Key | None:
        """What it settles for its job, if it settles anything."""
        if self.what in {What.TURNED_AWAY, What.PLACED}:
            return None
        name = self.subject.hex() if isinstance(self.subject, bytes) else self.subject
        return Key(self.what, name)


def answer_of(action: Action) -> Reply | None:
    """Return what an action tells a client, if it tells one anything."""
    if isinstance(action, AnswerOperation):  # most are
        return Reply(what=What.ANSWERED, subject=action.operation_id, run_us=action.run_us)
    match action:
        case RefuseOperation(fault=fault):
            is_again = not action.is_final and fault.code in RETRYABLE
            what = What.TURNED_AWAY if is_again else What.ANSWERED
            return Reply(what=what, subject=action.operation_id, fault=fault)
        case DeploymentChanged():
            is_starting = action.state is DeploymentState.STARTING
            return Reply(
                what=What.PLACED if is_starting else What.READY,
                subject=action.deployment_id,
                fault=action.fault,
                is_placed=action.wpg_id is not None,
            )
        case JobChanged() if action.state in ENDED:
            return Reply(what=What.ENDED, subject=action.job_id)
        case _:
            return None


class Post(NamedTuple):
    """An event of a client. It happens at `at_us`, or at once if that is past."""

    at_us: int
    event: Event
    tag: int = 0
    """The client's own mark, given back with the event."""


class Alarm(NamedTuple):
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

    def happened(self, event: Event, *, tag: int) -> Posts:
        """Return what it posts because one of its own events was decided."""
        return ()

    def told(self, answer: Reply, *, now_us: int) -> Posts:
        """Return what it posts because of an answer."""
        return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:
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

    def happened(self, event: Event, *, tag: int) -> Posts:
        """Count it."""
        self._left -= 1
        return ()
