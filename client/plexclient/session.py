"""Session of a job: state that its deployments share, and keepalives.

The session dies on the service when no keepalive came for its time to live. Each keepalive carries,
per deployment, the sequence number up to which every answer has been read (the service may drop
those), and the controller's own progress figures.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from plexclient import checks
from plexclient.background import Background
from plexclient.clock import RetryClock
from plexclient.errors import ErrorCode, PlexError, bad_request, payload_too_large, queue_full
from plexclient.link import Link
from plexclient.options import ClientOptions
from plexclient.retry import Retry, persist
from plexclient.wire.v1 import service_pb2

log = logging.getLogger("plexclient")

ENDED: Final[Mapping[int, str]] = {
    service_pb2.JOB_STATE_COMPLETED: "completed",
    service_pb2.JOB_STATE_FAILED: "failed",
    service_pb2.JOB_STATE_CANCELLED: "cancelled",
}
FATAL: Final = frozenset({ErrorCode.JOB_ENDED, ErrorCode.NOT_FOUND, ErrorCode.UNAUTHENTICATED})
"""Answers to a keepalive after which there is no session to keep."""

MAX_STEP: Final = 10**15
MAX_METRICS: Final = 64
"""Progress figures of a job, all names that were reported; the service takes no more."""

MAX_METRIC_CHARS: Final = 128
"""Characters of a figure's name."""


class Answered:
    """The numbers of one deployment whose answers have been read; `upto` is their unbroken prefix.

    >>> answered = Answered()
    >>> answered.add(2), answered.upto, answered.add(1), answered.upto
    (None, 0, None, 2)
    """

    def __init__(self, upto: int = 0) -> None:
        self.upto = upto
        self._beyond: set[int] = set()

    def add(self, seq: int) -> None:
        """Note that the answer of `seq` has been read, again perhaps. O(1) amortised."""
        if seq > self.upto:  # else it would stay in the set for good
            self._beyond.add(seq)
        while self.upto + 1 in self._beyond:
            self.upto += 1
            self._beyond.remove(self.upto)


class PayloadBudget:
    """Bytes kept for unanswered operations. Taken by callers, given back by the loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.used_bytes = 0

    def take(self, nbytes: int) -> None:
        """Reserve `nbytes`.

        Raises:
            PlexError: `payload_too_large` when it can never fit; `queue_full` when it does not now.
        """
        with self._lock:
            if nbytes > self._limit_bytes:
                raise payload_too_large(
                    f"a payload of {nbytes} bytes is more than the client keeps at all: "
                    f"{self._limit_bytes} (ClientOptions.max_unanswered_payload_bytes); split it"
                )
            if self.used_bytes + nbytes > self._limit_bytes:
                raise queue_full(
                    f"a payload of {nbytes} bytes does not fit beside {self.used_bytes} bytes of "
                    f"unanswered ones; the limit is {self._limit_bytes} "
                    "(ClientOptions.max_unanswered_payload_bytes): await some calls, call again"
                )
            self.used_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """Return `nbytes` taken before."""
        with self._lock:
            self.used_bytes -= nbytes


class Session:
    """What one job's deployments share. `order` is held while an operation takes its place."""

    def __init__(
        self,
        job_id: str,
        *,
        link: Link,
        background: Background,
        options: ClientOptions,
        clock: RetryClock,
    ) -> None:
        self.job_id = job_id
        self.link = link
        self.background = background
        self.options = options
        self.clock = clock
        self.order = threading.RLock()
        self.budget = PayloadBudget(options.max_unanswered_payload_bytes)
        self.ttl_us = 0
        self.controller = 0
        self._answered: dict[str, Answered] = {}
        self._metrics: dict[str, float] = {}
        self._ended: PlexError | None = None
        self._is_kept = True
        self._is_noticed = False

    def retry(self, what: str, *, give_up_after_s: float | None = None) -> Retry:
        """Return fresh patience for one call."""
        limit_s = self.options.operation_timeout_s if give_up_after_s is None else give_up_after_s
        return Retry(
            self.clock, retry_for_s=self.options.retry_for_s, give_up_after_s=limit_s, what=what
        )

    async def short(self, method: str, request: Message) -> Any:
        """Return the reply to one attempt of a short call."""
        return await self.link.unary(method, request, timeout_s=self.options.rpc_timeout_s)

    async def ask(self, method: str, request: Message) -> Any:
        """Return the reply to a short call that is tried again."""
        retry = self.retry(f"{method} of job {self.job_id}")
        return await persist(lambda: self.short(method, request), retry=retry)

    def check_open(self) -> None:
        """Refuse a call on a job that is known to have ended.

        Raises:
            PlexError: `job_ended`, or what ended the session.
        """
        if self._ended is not None:
            raise PlexError(self._ended.code, self._ended.message, **self._ended.facts)

    def end(self, error: PlexError) -> None:
        """Refuse further operations with `error`."""
        self._ended = self._ended or error

    def report(self, metrics: Mapping[str, float]) -> None:
        """Replace the progress figures that the next keepalive carries.

        Raises:
            PlexError: `bad_request` for what is no number, a `step` that is no whole number from 0,
                a name that nobody could show, or more than `MAX_METRICS` names.
        """
        for name in metrics:
            if not 0 < len(name) <= MAX_METRIC_CHARS or not name.isprintable():
                raise bad_request(
                    f"report got a figure called {name[:MAX_METRIC_CHARS]!r}; a name has 1 to "
                    f"{MAX_METRIC_CHARS} printable characters"
                )
        taken = {name: _figure(name, value) for name, value in metrics.items()}
        merged = {**self._metrics, **taken}
        if len(merged) > MAX_METRICS:
            raise bad_request(
                f"report would show {len(merged)} figures of a job; at most {MAX_METRICS}: use the "
                "same names at every step"
            )
        self._metrics = merged

    def begin(self, deployment_id: str, *, answered: int) -> None:
        """Take what former controllers sent of a deployment as answered."""
        self._answered[deployment_id] = Answered(answered)

    def answered(self, deployment_id: str, seq: int) -> None:
        """Note that an answer has been read. Called on the loop."""
        self._answered.setdefault(deployment_id, Answered()).add(seq)

    async def keep_alive(self) -> None:
        """Send keepalives until the session is stopped or has ended."""
        while self._is_kept and self._ended is None:
            try:
                await self.beat()
            except PlexError as error:
                if error.code in FATAL:
                    self.end(error)  # anything else may pass, and if not the service ends the job
            await self.clock.sleep(self.pause_s())

    async def beat(self) -> None:
        """Send one keepalive and note when the service says that the job has ended.

        Raises:
            PlexError: what the call met.
        """
        request = service_pb2.KeepAliveRequest(
            job_id=self.job_id,
            acks={name: answered.upto for name, answered in self._answered.items()},
            metrics=self._metrics,
            controller=self.controller,
            period_us=int(self.pause_s() * 1e6),
        )
        reply: service_pb2.KeepAliveReply = await self.short("KeepAlive", request)
        if reply.notice and not self._is_noticed:
            log.warning("%s: %s", self.job_id, reply.notice)
        self._is_noticed = bool(reply.notice)
        if reply.state in ENDED:
            self.end(ended_error(self.job_id, state=reply.state, reason=reply.reason))

    def keep(self) -> None:
        """Start the keepalives."""
        self.background.start(self.keep_alive)

    def stop(self) -> None:
        """Let the keepalives end."""
        self._is_kept = False

    def pause_s(self) -> float:
        """Return the time between keepalives: well within the time to live."""
        if self.ttl_us == 0:
            return self.options.keepalive_s
        # A quarter of it: three keepalives in a row may be lost.
        return min(self.options.keepalive_s, self.ttl_us / 4e6)


def ended_error(job_id: str, *, state: int, reason: str) -> PlexError:
    """Return the error of calls on a job that has ended."""
    return PlexError(
        ErrorCode.JOB_ENDED,
        f"job {job_id} has ended, {ENDED.get(state, 'somehow')}{': ' + reason if reason else ''}; "
        "start a new one",
        job_id=job_id,
        reason=reason,
    )


def _figure(name: str, value: float) -> float:
    """Return a progress figure as it is shown: a loss that became NaN ends nobody's loop."""
    if name == "step":
        return checks.whole("report: step", value, most=MAX_STEP)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_request(f"report takes numbers; {name} is {value!r:.40}") from error
