"""The record of answers: the last guard that an operation takes effect once.

A known operation id is answered from the record. An unknown one whose sequence number has already
been passed is refused. A refusal that may be retried consumes no number. It is kept for repeats of
the same attempt only: a rank that ran one of those would wait for peers that have answered.
"""

from __future__ import annotations

from plexclient.wire.v1 import worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import show
from plexsvc.newest import Newest


class ReplyLedger:
    """Replies by operation id, the newest `max_replies` of them, and the highest applied number."""

    def __init__(self, *, max_replies: int) -> None:
        self._replies = Newest[bytes, worker_pb2.ExecuteReply](max_replies)
        self._refused: tuple[bytes, int, worker_pb2.ExecuteReply] | None = None
        self.applied_seq = -1
        """Highest sequence number with a final answer; -1 before Initialize, whose number is 0."""

    def recorded(self, operation_id: bytes, *, attempt: int) -> worker_pb2.ExecuteReply | None:
        """Return the reply `operation_id` got, in this attempt or for good, if it is still kept."""
        if self._refused is not None and attempt and self._refused[:2] == (operation_id, attempt):
            return self._refused[2]
        return self._replies.get(operation_id)

    def check_order(self, operation_id: bytes, seq: int) -> None:
        """Refuse a number that was already passed.

        Raises:
            PlexError: `stale_sequence`.
        """
        if seq <= self.applied_seq:
            raise PlexError(
                ErrorCode.STALE_SEQUENCE,
                f"{show(operation_id)} has sequence number {seq}; this rank has already applied "
                f"{self.applied_seq}. The next operation must have a higher number",
                seq=seq,
                applied_seq=self.applied_seq,
            )

    def go_on_from(self, seq: int) -> None:
        """Count everything up to `seq` as applied: another WPG's ranks did it."""
        self.applied_seq = max(self.applied_seq, seq)

    def begin(self, seq: int) -> None:
        """Use up a number: what follows changes the rank's state, however it ends."""
        self.applied_seq = seq

    def refuse(self, operation_id: bytes, attempt: int, reply: worker_pb2.ExecuteReply) -> None:
        """Keep the newest refusal that may be retried for repeats of its attempt."""
        self._refused = (operation_id, attempt, reply)

    def finish(self, operation_id: bytes, seq: int, reply: worker_pb2.ExecuteReply) -> None:
        """Record a final reply; the oldest beyond the limit is forgotten. `O(1)`."""
        self.applied_seq = seq
        reply.applied_seq = seq
        self._replies[operation_id] = reply
