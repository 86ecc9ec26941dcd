"""Record of a batch: what its samples are, who waits for them, and what they were answered.

A sample that comes again is answered from here. The record goes when nobody has asked for the batch
for a while; until then the client may lose its line, or the router, as often as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.reward.programs.base import Program


@dataclass(slots=True)
class Pending:
    """A sample that is not answered."""

    sample: pb.ScoreSample
    output: str = ""
    """Of the stages that ran."""
    detail: str = ""
    """What the last stage said of its verdict."""
    files: dict[str, bytes] = field(default_factory=dict)
    """That the last stage left."""

    @property
    def nbytes(self) -> int:
        """What it takes of its tenant's room."""
        return len(self.sample.text) + len(self.sample.reference)


@dataclass(slots=True, kw_only=True)
class BatchRecord:
    """One batch of a job."""

    program: Program
    settings: str
    size: int = 0
    nbytes: int = 0
    """What its samples, and files that came with scores, take of its tenant's room."""
    readers: int = 0
    quiet_since_us: int = 0
    """When the last reader left."""
    pending: dict[int, Pending] = field(default_factory=dict)
    replies: dict[int, pb.ScoreReply] = field(default_factory=dict)
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
                raise PlexError(
                    ErrorCode.BAD_REQUEST,
                    f"sample {sample.index} of the batch came before with another text or "
                    "reference; give each sample an index of its own",
                )
        return list(found.values())

    def add(self, samples: Iterable[pb.ScoreSample]) -> None:
        """Take new samples in."""
        for sample in samples:
            self._digests[sample.index] = _digest(sample)
            self.pending[sample.index] = Pending(sample)
            self.nbytes += self.pending[sample.index].nbytes

    def answer(self, reply: pb.ScoreReply) -> None:
        """Keep a sample's answer and tell all who wait for it."""
        self.nbytes -= self.pending.pop(reply.index).nbytes
        self.replies[reply.index] = reply
        self.nbytes += sum(map(len, reply.files.values()))
        for queue in self._waiting.pop(reply.index, ()):
            queue.put_nowait(reply)

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


def _digest(sample: pb.ScoreSample) -> int:
    whole = f"{len(sample.text)}:{sample.text}{sample.reference}"
    return xxhash.xxh3_64_intdigest(whole.encode())
