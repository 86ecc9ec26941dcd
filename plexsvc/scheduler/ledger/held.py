"""Operations from submission to answer, and frozen versions of state: where each lies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from plexclient.wire.v1 import operations_pb2
from plexsvc.ids import NodeId, VersionId
from plexsvc.scheduler.core.vocabulary import OperationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A frozen version of a WPG's state, and the nodes that hold pieces of it."""

    version: VersionId
    nodes: tuple[NodeId, ...]
    nbytes: tuple[int, ...] = ()
    """What each node holds, once all do."""
    parts: tuple[str, ...] = ()
    """The name of what each holds; nodes of one name hold the same."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """An operation that a former scheduler held, until its client sends it again."""

    operation: operations_pb2.Operation
    """Its ids, its number and its kind; nothing else is known."""
    had_copy: bool = False
    """Whether it worked from a copy of its WPG's state, so that the WPG went on."""
    arrival: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all of it is there, or when it does not come any more."""


@dataclass(slots=True, kw_only=True)
class Held:
    """An operation from its submission to its answer."""

    operation: operations_pb2.Operation
    kind: OperationKind
    nbytes: int
    submitted_us: int
    result: operations_pb2.OperationResult | None = None
    digest: str = ""
    lease_no: int = 0
    staged_on: tuple[NodeId, ...] = ()
    """Nodes whose staging memory has its payload."""
    copies: Published | None = None
    """What an `Initialize` starts from instead of the model's weights."""
