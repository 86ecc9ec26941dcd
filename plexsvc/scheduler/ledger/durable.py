"""Record of a durable deployment: the copy of its state, and what was applied since."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId
from plexsvc.scheduler.core.vocabulary import OperationKind
from plexsvc.scheduler.ledger.held import Held, Published

REPLAYED: Final = frozenset(
    {
        OperationKind.FORWARD_BACKWARD,
        OperationKind.BACKWARD,
        OperationKind.STEP,
        OperationKind.ZERO_GRAD,
        OperationKind.LOAD,
        OperationKind.PULL,
    }
)
"""Kinds that change a deployment's state or its gradients."""

MAX_KEPT_BYTES: Final = 128 << 20
"""Most that the operations since a copy may take, in messages and in staging memory."""

STAGING_PART: Final = 8
"""Of a node's staging memory they take at most one part in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedOperation:
    """An operation that ran, and what came of it."""

    held: Held
    digest: str
    code: str = ""
    """Of the error that it failed with; empty when it was applied."""
    slot: int = 0
    """Its place in the store, of which no other one kept has the same."""

    @property
    def nbytes(self) -> int:
        """Return what is kept for it."""
        staged = self.held.operation.payload.staged.nbytes if self.held.staged_on else 0
        return int(self.held.operation.ByteSize() + staged)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStep:
    """A copy as a checkpoint has it."""

    copy: Published
    number: int
    """How many steps its optimizer has taken."""
    position: str
    """Where its client was in its data, as JSON."""


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """How a deployment was rebuilt: the moments between its parts, in microseconds."""

    why: str
    lost_us: int
    stopped_us: int = 0
    placed_us: int = 0
    up_us: int = 0
    restored_us: int = 0
    going_on_us: int = 0
    seq: int = 0
    replayed: int = 0

    def __str__(self) -> str:
        moments = (
            self.lost_us,
            self.stopped_us,
            self.placed_us,
            self.up_us,
            self.restored_us,
            self.going_on_us,
        )
        at_us = list(itertools.accumulate(moments, max))  # one that no service saw took no time
        names = ("end", "place", "start", "restore", "replay")
        parts = [
            f"{name} {(until_us - since_us) / 1e6:.2f} s"
            for name, since_us, until_us in zip(names, at_us[:-1], at_us[1:], strict=True)
        ]
        return (
            f"was rebuilt from its state after seq {self.seq} and {self.replayed} operations since "
            f"in {(self.going_on_us - self.lost_us) / 1e6:.2f} s ({', '.join(parts)}): {self.why}"
        )


@dataclass(slots=True, kw_only=True)
class Durable:
    """The copy after operation `seq` (0: the model's weights), and what ran since, by number.

    There is a second copy on another node, after `second_seq`; what ran since that is kept, too.
    """

    copy: Published | None = None
    seq: int = 0
    second: Published | None = None
    second_seq: int | None = 0
    """0: the model's weights; None: there is no second copy."""
    alone: str = "no other node has room"
    """Why there is no second copy, or no newer one."""
    since: dict[int, CompletedOperation] = field(default_factory=dict)
    unknown_to: int = 0
    """The last number of what ran and is not kept: without a copy from after it there is no way
    back."""
    most_bytes: int = MAX_KEPT_BYTES
    pause: Rebuilt | None = None
    """The last time that it was rebuilt."""
    copied: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no copy is being made."""
    newest: CheckpointStep | None = None
    """What the copy is."""
    written: CheckpointStep | None = None
    """What is being written as a checkpoint."""
    is_overdue: bool = False
    """Whether another was to be written meanwhile."""
    checkpoint: str = ""
    """What became of the last checkpoint."""
    is_sending: bool = False
    """Whether another node is copying the copy."""
    is_over: bool = False
    """Whether nothing is left of the deployment."""
    other_nodes: dict[NodeId, None] = field(default_factory=dict)
    """Nodes that it was not on and that have had staged inputs or results of it."""

    def __post_init__(self) -> None:
        """Begin with no copy being made."""
        self.copied.set()

    def __str__(self) -> str:
        if self.unknown_to > self.seq:
            return (
                "cannot be rebuilt before its next step: what ran up to seq "
                f"{self.unknown_to} is not kept"
            )
        nbytes = sum(sum(copy.nbytes) for copy in (self.copy, self.second) if copy is not None)
        elsewhere = f"not if its node is lost: {self.alone}"
        if self.second_seq is not None:
            on = "" if self.second is None else f" on {self.second.nodes[0]}"
            elsewhere = f"if its node is lost, after seq {self.second_seq}{on}"
        return (
            f"can be rebuilt from its state after seq {self.seq} ({nbytes} bytes of host memory) "
            f"and {len(self.to_replay)} operations since; {elsewhere}"
        )

    @property
    def to_replay(self) -> list[CompletedOperation]:
        """Return what ran since the copy, in order."""
        return [self.since[seq] for seq in sorted(self.since) if seq > self.seq]

    @property
    def is_lost(self) -> bool:
        """Whether its processes died and others do not have its state yet."""
        return self.pause is not None and not self.pause.going_on_us

    def reached(self, name: str, at_us: int) -> None:
        """Note when a part of being rebuilt ended."""
        if self.pause is not None and self.is_lost:
            setattr(self.pause, name, at_us)

    def held(self) -> Counter[NodeId]:
        """Return the bytes that nodes hold for it, with room for the next copy.

        One that is written as a checkpoint may be a third.
        """
        found = Counter[NodeId]()
        for copy in (self.copy, self.second):
            count = 2 if copy is self.second or self.written is None else 3
            for node_id, nbytes in zip(copy.nodes, copy.nbytes, strict=False) if copy else ():
                found[node_id] += count * nbytes
        return found

    def writes(self, copy: Published) -> bool:
        """Return whether a copy is being written as a checkpoint, and released after that."""
        return self.written is not None and self.written.copy is copy

    def note(self, done: CompletedOperation) -> list[CompletedOperation]:
        """Keep an operation that ran; return those that are kept no longer: there are too many."""
        seq = done.held.operation.seq
        self.since[seq] = done
        gone = []
        if self._is_too_much and self.second_seq is not None:
            gone = self.lose_second("too much ran since")
        if self._is_too_much:
            self.unknown_to = seq
            gone += self._drop_to(seq)
        return gone

    @property
    def _is_too_much(self) -> bool:
        return sum(one.nbytes for one in self.since.values()) > self.most_bytes

    def recall(self, ran: Iterable[CompletedOperation]) -> None:
        """Take over what a former service kept; that the copies hold it does not matter."""
        for done in ran:
            if done.held.operation.seq > self._needed_to:
                self.since[done.held.operation.seq] = done
                self.other_nodes.update(dict.fromkeys(done.held.staged_on))

    def slot_of(self, seq: int) -> int:
        """Return the slot of the store that an operation has, or the first one that none has."""
        if seq in self.since:
            return self.since[seq].slot
        taken = {done.slot for done in self.since.values()}
        return next(slot for slot in itertools.count() if slot not in taken)

    def keeps(self, operation_id: bytes) -> bool:
        """Return whether an operation's inputs may be needed again."""
        return any(done.held.operation.operation_id == operation_id for done in self.since.values())

    def take(self, copy: Published, *, seq: int) -> list[CompletedOperation]:
        """Go on from a newer copy; return the operations that are not needed any more.

        Where there is no second copy, the one before is it, if it lies on other nodes: so it does
        after a deployment was rebuilt from its second copy.
        """
        before, before_seq = self.copy, self.seq
        self.copy, self.seq = copy, seq
        if self.second_seq is None and _is_apart(before, copy.nodes):
            self.second, self.second_seq, self.alone = before, before_seq, ""
        return self._drop_to(self._needed_to)

    def take_second(self, copy: Published, *, seq: int) -> list[CompletedOperation]:
        """Note a newer copy on another node; return the operations that are not needed any more."""
        self.second, self.second_seq, self.alone = copy, seq, ""
        return self._drop_to(self._needed_to)

    def lose_second(self, why: str) -> list[CompletedOperation]:
        """Go on without a copy on another node; return the operations that are needed no more."""
        self.second, self.second_seq, self.alone = None, None, why
        return self._drop_to(self._needed_to)

    def fall_back(self) -> None:
        """Go on from the second copy: the first is lost.

        Raises:
            PlexError: `deployment_failed` when there is none.
        """
        if self.second_seq is None:
            raise PlexError(
                ErrorCode.DEPLOYMENT_FAILED,
                f"the copy of its state went with its node, and there is no other: {self.alone}",
            )
        self.copy, self.seq = self.second, self.second_seq
        self.lose_second("it was rebuilt from that")

    def outlives(self, nodes: Sequence[NodeId]) -> bool:
        """Return whether there is a copy, or the model's weights, when these nodes are lost."""
        copies = (self.copy, self.second)
        return self.second_seq == 0 or any(_is_apart(copy, nodes) for copy in copies)

    @property
    def _needed_to(self) -> int:
        return self.seq if self.second_seq is None else min(self.seq, self.second_seq)

    def check(self) -> None:
        """Refuse to rebuild what would not be what it was.

        Raises:
            PlexError: `deployment_failed`.
        """
        if self.unknown_to > self.seq:
            raise PlexError(
                ErrorCode.DEPLOYMENT_FAILED,
                f"what ran up to seq {self.unknown_to} is not kept (at most {self.most_bytes} "
                "bytes are, by one service); load a checkpoint",
            )

    def _drop_to(self, seq: int) -> list[CompletedOperation]:
        return [self.since.pop(number) for number in sorted(self.since) if number <= seq]


def _is_apart(copy: Published | None, nodes: Sequence[NodeId]) -> bool:
    return copy is not None and not set(copy.nodes) & set(nodes)


def staged(gone: Sequence[CompletedOperation]) -> list[bytes]:
    """Return the ids of the staged inputs of operations."""
    return [done.held.operation.operation_id for done in gone if done.held.staged_on]
