"""Record of a batch: what its samples are, who waits for them, and what they were answered.

A sample that comes again is answered from here. The record goes when nobody has asked for the batch
for a while; until then the client may lose its line, or the router, as often as it likes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import bad_request
from plexsvc.reward.programs.base import Program
from plexsvc.reward.shelf import Files, Spilled, TenantShelf


@dataclass(slots=True)
class PendingSample:
    """A sample that is not answered."""

    sample: pb.ScoreSample
    output: str = ""
    """Of the stages that ran."""
    detail: str = ""
    """What the last stage said of its verdict."""
    files: Files | Spilled = field(default_factory=dict)
    """That the last stage left."""

    @property
    def nbytes(self) -> int:
        """What it takes of its tenant's room in memory."""
        files = {} if isinstance(self.files, Spilled) else self.files
        return size_of(self.sample) + _size(self.output, self.detail) + _size_of_files(files)


@dataclass(slots=True, kw_only=True)
class BatchRecord:
    """One batch of a job."""

    program: Program
    settings: str
    room: TenantShelf
    """Of its tenant."""
    place: Path
    """Where files of its samples lie."""
    size: int = 0
    nbytes: int = 0
    """What its samples and their answers take of its tenant's room in memory."""
    readers: int = 0
    quiet_since_us: int = 0
    """When the last reader left."""
    pending: dict[int, PendingSample] = field(default_factory=dict)
    replies: dict[int, pb.ScoreReply] = field(default_factory=dict)
    spilled: dict[int, Spilled] = field(default_factory=dict)
    """Files of replies that lie on disk."""
    _digests: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, list[asyncio.Queue[pb.ScoreReply]]] = field(default_factory=dict)

    def new_ones(self, samples: Iterable[pb.ScoreSample]) -> list[pb.ScoreSample]:
        """Return those that were not sent before. Changes nothing.

        Raises:
            PlexError: `bad_request` for one that is there with other contents.
        """
        found: dict[int, pb.ScoreSample] = {}
        for sample in samples:
            known = self._digests.get(sample.index)
            if known is None and sample.index in found:
                known = _digest(found[sample.index])
            if known is None:
                found[sample.index] = sample
            elif known != _digest(sample):
                raise bad_request(
                    f"sample {sample.index} of the batch came before with another text or "
                    "reference; give each sample an index of its own"
                )
        return list(found.values())

    def own_bytes(self) -> int:
        """Return what the batch takes beside its samples: its settings, and a program of its own.

        Batches of one version of a program hold it together.
        """
        is_held = self.room.programs[self.program.version] > 0
        return _size(self.settings) + (0 if is_held else len(self.program.definition))

    def enter(self) -> None:
        """Count what the batch takes beside its samples."""
        self.room.nbytes += self.own_bytes()
        self.room.programs[self.program.version] += 1

    def leave(self) -> None:
        """Give back all that is counted."""
        self.room.programs[self.program.version] -= 1
        self.room.nbytes -= self.nbytes + self.own_bytes()
        self.room.programs += Counter()  # drops those that no batch holds
        files = [one.files for one in self.pending.values() if isinstance(one.files, Spilled)]
        spilled = sum(one.nbytes for one in (*files, *self.spilled.values()))
        self.room.spilled_bytes -= spilled

    def add(self, samples: Iterable[pb.ScoreSample]) -> None:
        """Take new samples in."""
        for sample in samples:
            self._digests[sample.index] = _digest(sample)
            self.pending[sample.index] = PendingSample(sample)
            self._count(size_of(sample))

    def note(self, index: int, *, output: str, detail: str, files: Files | Spilled | None) -> None:
        """Take what a stage printed, said of its verdict, and left; None: what was left stays."""
        pending = self.pending[index]
        before = pending.nbytes
        pending.output, pending.detail = output, detail
        pending.files = pending.files if files is None else files
        self._count(pending.nbytes - before)

    def answer(self, reply: pb.ScoreReply) -> None:
        """Keep a sample's answer and tell all who wait for it."""
        pending = self.pending.pop(reply.index)
        if isinstance(pending.files, Spilled):
            self.spilled[reply.index] = pending.files
        self.replies[reply.index] = reply
        kept = _size(reply.output, reply.detail) + _size_of_files(reply.files)
        self._count(kept - pending.nbytes)
        for queue in self._waiting.pop(reply.index, ()):
            queue.put_nowait(reply)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self.room.nbytes += nbytes

    def subscribe(self, indices: Iterable[int]) -> asyncio.Queue[pb.ScoreReply]:
        """Return a queue of the answers to these samples, those that are there first."""
        queue: asyncio.Queue[pb.ScoreReply] = asyncio.Queue()  # bounded by the samples of a request
        for index in indices:
            if index in self.replies:
                queue.put_nowait(self.replies[index])
            else:
                self._waiting.setdefault(index, []).append(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[pb.ScoreReply], indices: Iterable[int]) -> None:
        """Tell a queue of these samples no more."""
        for index in indices:
            if queue in (queues := self._waiting.get(index, [])):
                queues.remove(queue)


def size_of(sample: pb.ScoreSample) -> int:
    """Return what a sample takes of its tenant's room."""
    return _size(sample.text, sample.reference)


def _size(*texts: str) -> int:
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


def _size_of_files(files: Files) -> int:
    return sum(len(path) + len(data) for path, data in files.items())


def _digest(sample: pb.ScoreSample) -> int:
    whole = f"{len(sample.text)}:{sample.text}{sample.reference}"
    return xxhash.xxh3_64_intdigest(whole.encode())
