"""Supervisor of one controller: starts it, watches its job, reports how it ended.

`python -m plexsvc.controllers.supervise JOB_DIR` runs in a session of its own, so it survives the
terminal.
The controller is in a process group of its own, tied to this process. When the job is cancelled on
the service (also when its session expired) the controller gets TERM, then KILL; when the job failed
there, the controller gets a moment to leave by itself first. A controller that completed its job
goes on as long as it likes.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Final

import grpc.aio

from plexclient.link import bearer, open_router
from plexclient.wire.v1 import service_pb2, service_pb2_grpc
from plexsvc.clock import Clock, SystemClock
from plexsvc.cluster.places import ADDRESS_VARIABLE, CA_VARIABLE, RESTARTS_VARIABLE, TOKEN_VARIABLE
from plexsvc.controllers.submit import LOG, JobEnd, JobOrder, read_order, write_end
from plexsvc.log import Log, setup
from plexsvc.node.logs import keep_bounded, tail
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.retry import Patience, retry

log = Log(__name__)

WATCH_PERIOD_US: Final = 1_000_000
GRACE_S: Final = 5.0
CALL_TIMEOUT_S: Final = 5.0
END_TRIES: Final = 30
REASON_LINES: Final = 5
REASON_BYTES: Final = 1024
MAX_LOG_BYTES: Final = 64 << 20
"""Size at which a job's log is emptied; what it held before is kept once, as `.log.1`."""

ENDED: Final = frozenset(
    {
        service_pb2.JOB_STATE_COMPLETED,
        service_pb2.JOB_STATE_FAILED,
        service_pb2.JOB_STATE_CANCELLED,
    }
)


class Supervisor:
    """One controller and its job."""

    def __init__(
        self,
        order: JobOrder,
        *,
        place: Path,
        stub: service_pb2_grpc.RouterAsyncStub,
        token: str,
        clock: Clock,
    ) -> None:
        self._order = order
        self._place = place
        self._stub = stub
        self._metadata = (bearer(token),)
        self._clock = clock
        self._ended_job: service_pb2.Job | None = None
        self._last_lines: list[str] = []
        """Of what the last controller wrote."""

    async def run(self) -> JobEnd:
        """Run the controller to its end, again if it died; record it, report it; return it."""
        number = 0
        while code := await self._run_once(number):
            number += 1
            if number > self._order.restarts or await self._has_ended():
                break
        end = self._end(code)
        if await self._report(end):
            end = self._end(code)
        write_end(self._place, end)
        return end

    async def _run_once(self, number: int) -> int:
        """Run one controller, before which so many died, to its end; return its exit code."""
        process = await self._start(number)
        async with asyncio.TaskGroup() as tasks:
            bounded = keep_bounded(self._place, max_bytes=MAX_LOG_BYTES, clock=self._clock)
            beside = [
                tasks.create_task(self._stop_when_job_ends(process)),
                tasks.create_task(bounded),
            ]
            code = await process.wait()
            for task in beside:
                task.cancel()
        if code:
            # Before our own line, which goes to the same log.
            written = tail(self._place / LOG, num_bytes=REASON_BYTES)
            self._last_lines = written.rstrip().splitlines()[-REASON_LINES:]
            log.warning("controller ended", job_id=self._order.job_id, code=code, before=number)
        return code

    async def _start(self, number: int = 0) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *tether(self._order.user),
            *self._order.argv,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, RESTARTS_VARIABLE: str(number)},
        )

    async def _stop_when_job_ends(self, process: asyncio.subprocess.Process) -> None:
        while not await self._has_ended():
            await self._clock.sleep(WATCH_PERIOD_US)
        assert self._ended_job is not None
        state = self._ended_job.state
        if state == service_pb2.JOB_STATE_COMPLETED:
            return
        if state != service_pb2.JOB_STATE_CANCELLED:
            await _leaves(process)
        log.warning("stopping the controller: its job has ended", job_id=self._order.job_id)
        _signal_group(process.pid, signal.SIGTERM)
        if not await _leaves(process):
            _signal_group(process.pid, signal.SIGKILL)

    async def _has_ended(self) -> bool:
        if self._ended_job is None:
            job = await self._job()
            self._ended_job = job if job is not None and job.state in ENDED else None
        return self._ended_job is not None

    async def _job(self) -> service_pb2.Job | None:
        """Return the job as the service has it, or None when it cannot be asked now.

        A service that does not know the job was restarted: the job has failed.
        """
        request = service_pb2.ListJobsRequest(include_ended=True)
        try:
            reply = await self._stub.ListJobs(
                request, timeout=CALL_TIMEOUT_S, metadata=self._metadata
            )
        except grpc.aio.AioRpcError:
            return None
        lost = service_pb2.Job(
            job_id=self._order.job_id,
            state=service_pb2.JOB_STATE_FAILED,
            reason="the service does not know the job any more: it was restarted meanwhile",
        )
        return next((job for job in reply.jobs if job.job_id == lost.job_id), lost)

    def _end(self, code: int) -> JobEnd:
        ended = self._ended_job
        if ended is not None and ended.state != service_pb2.JOB_STATE_COMPLETED:
            outcome, reason = outcome_name(ended.state), ended.reason
        elif code == 0:
            outcome, reason = "completed", ""
        else:  # it may have completed its job before
            outcome, reason = "failed", self._failure(code)
        return JobEnd(outcome=outcome, exit_code=max(code, 0), signal=max(-code, 0), reason=reason)

    def _failure(self, code: int) -> str:
        if code < 0:
            how = f"the controller was killed by {signal.Signals(-code).name}"
        else:
            how = f"the controller exited with {code}"
        lines = self._last_lines
        # Tables show the first line alone, and Python says what was wrong in the last.
        return "\n".join([f"{how}: {lines[-1]}", "its log ends:", *lines]) if lines else how

    async def _report(self, end: JobEnd) -> bool:
        """Tell the service, again and again for a bounded time while it cannot be reached.

        Return whether the job had ended there already, and otherwise.
        """
        if self._ended_job is not None:
            return False  # the service knows
        request = service_pb2.EndJobRequest(
            job_id=self._order.job_id,
            outcome=f"JOB_STATE_{end.outcome.upper()}",
            reason=end.reason,
            exit_code=end.exit_code if end.signal == 0 else 128 + end.signal,
        )

        async def tell() -> service_pb2.Job:
            return await self._stub.EndJob(
                request, timeout=6 * CALL_TIMEOUT_S, metadata=self._metadata
            )

        async def may_pass(failure: grpc.aio.AioRpcError) -> bool:
            return error_from(failure).retryable

        try:
            job = await retry(
                tell,
                on=grpc.aio.AioRpcError,
                again=may_pass,
                clock=self._clock,
                patience=Patience(pause_us=WATCH_PERIOD_US, max_tries=END_TRIES),
                what=f"end of {request.job_id}",
            )
        except grpc.aio.AioRpcError as failure:
            log.warning("job's end not recorded", job_id=request.job_id, error=error_from(failure))
            return False
        self._ended_job = job if job.state in ENDED - {request.outcome} else None
        return self._ended_job is not None


def outcome_name(state: service_pb2.JobState) -> str:
    """Return `completed`, `failed`, `running`, ... for a job's state."""
    return service_pb2.JobState.Name(state).removeprefix("JOB_STATE_").lower()


async def _leaves(process: asyncio.subprocess.Process) -> bool:
    """Return whether the process ends by itself within `GRACE_S`."""
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        return False
    return True


def tether(user: str) -> tuple[str, ...]:
    """Return the command that starts another one as a user, tied to this process.

    It changes the user, not `subprocess`, which would have to fork for it, beside gRPC's threads.
    """
    own = not user or pwd.getpwnam(user).pw_uid == os.geteuid()
    who = () if own else ("--user", user)
    return (sys.executable, "-m", "plexsvc.tether", str(os.getpid()), *who)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # it ended by itself


async def _supervise(place: Path) -> None:
    async with open_router(os.environ[ADDRESS_VARIABLE], ca=os.environ[CA_VARIABLE]) as channel:
        stub = service_pb2_grpc.RouterStub(channel)
        supervisor = Supervisor(
            read_order(place),
            place=place,
            stub=stub,
            token=os.environ[TOKEN_VARIABLE],
            clock=SystemClock(),
        )
        await supervisor.run()


def main() -> None:
    """Supervise the job of the directory given as argument 1."""
    setup(level="WARNING")
    asyncio.run(_supervise(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
