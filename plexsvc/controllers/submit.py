"""Submission of controllers: registers the job, starts its supervisor, keeps its log."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from plexclient.ids import JobId, new_job_id
from plexclient.wire.v1 import service_pb2
from plexsvc.cluster import places
from plexsvc.cluster.calls import router
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found
from plexsvc.node.logs import older_half

LOG: Final = "controller.log"
END: Final = "end.json"
ORDER: Final = "job.json"
SUPERVISOR: Final = "supervisor.pid"
_FOLLOW_PERIOD_S: Final = 0.2
_START_S: Final = 30.0
"""Longest time from a job's order to its supervisor."""
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """What a supervisor runs: `<job dir>/job.json`."""

    job_id: str
    name: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Added to the submitter's environment."""
    user: str = ""
    """User as which the controller runs; empty: the submitter."""
    restarts: int = 0
    """How often a controller that died is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a controller ended: `<job dir>/end.json`."""

    outcome: str
    exit_code: int
    signal: int
    reason: str


def submit(
    card: places.Card,
    *,
    state_dir: Path,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    terms: service_pb2.CreateJobRequest | None = None,
    restarts: int = 0,
) -> JobId:
    """Register a job and start its controller as a process that outlives this terminal.

    `terms` carries what else is asked of the service: session time, priority, bound on slowdown.

    Raises:
        PlexError: what the service says; `bad_request` for a script that is not there; `forbidden`
            when the cluster's controllers run as a user that this process cannot become.
    """
    script = Path(argv[0])
    if not script.is_file():
        raise bad_request(f"no script {script}: give the path of a file")
    check_user(card.controller_user)
    job_id = new_job_id()
    order = JobOrder(
        job_id=job_id,
        name=name,
        argv=(sys.executable, *argv),
        cwd=str(Path.cwd()),
        env=dict(env),
        user=card.controller_user,
        restarts=restarts,
    )
    place = _prepare(state_dir, order)
    with router(card) as stub:
        request = service_pb2.CreateJobRequest(
            job_id=job_id, name=name, labels={"script": script.name}
        )
        request.MergeFrom(terms or service_pb2.CreateJobRequest())
        try:
            stub.CreateJob(request)
        except PlexError:
            shutil.rmtree(place, ignore_errors=True)
            raise
    _start_supervisor(place, card=card, order=order)
    return job_id


def check_user(name: str) -> None:
    """Refuse to run controllers as a user that this process cannot become.

    Raises:
        PlexError: `forbidden`, or `bad_request` when there is no such user.
    """
    if not name:
        return
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        raise bad_request(
            f"controllers run as {name!r}, and this machine has no such user"
        ) from error
    if os.geteuid() not in {0, found.pw_uid}:
        raise PlexError(
            ErrorCode.FORBIDDEN,
            f"controllers of this tenant run as user {name!r} (`controllers` in the cluster's "
            f"file); user {os.geteuid()} may not start processes of it: submit as root or as "
            f"{name!r}",
        )


def _prepare(state_dir: Path, order: JobOrder) -> Path:
    place = places.job_dir(state_dir, order.job_id)
    place.mkdir(mode=0o700, parents=True)
    (place / LOG).touch(mode=0o600)
    (place / ORDER).write_text(json.dumps(asdict(order)))
    return place


def read_order(place: Path) -> JobOrder:
    """Return the order in job directory `place`."""
    table = json.loads((place / ORDER).read_text())
    return JobOrder(**(table | {"argv": tuple(table["argv"])}))


def _start_supervisor(place: Path, *, card: places.Card, order: JobOrder) -> None:
    """Start the supervisor in a session of its own; address and token travel by environment."""
    env = {
        **os.environ,
        **order.env,
        places.ADDRESS_VARIABLE: card.address,
        places.TOKEN_VARIABLE: card.token,
        places.CA_VARIABLE: card.ca,
        places.JOB_VARIABLE: order.job_id,
        "PYTHONUNBUFFERED": "1",
    }
    with (place / LOG).open("ab") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "plexsvc.controllers.supervise", str(place)],
            env=env,
            cwd=order.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    (place / SUPERVISOR).write_text(str(process.pid))
    process.returncode = 0  # it is to outlive this process: do not warn that it was not awaited


def read_end(place: Path) -> JobEnd | None:
    """Return how the controller of job directory `place` ended, or None while it runs."""
    try:
        return JobEnd(**json.loads((place / END).read_text()))
    except FileNotFoundError:
        return None


def write_end(place: Path, end: JobEnd) -> None:
    """Record the end in one step."""
    unfinished = place / f".{END}"
    unfinished.write_text(json.dumps(asdict(end)))
    unfinished.replace(place / END)


def read_log(place: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield the job's log, with what it held before it was emptied for its size.

    With `follow`, what is added too, until its controller has ended.

    Raises:
        PlexError: `not_found` when this machine has no log of the job.
    """
    try:
        file = (place / LOG).open("rb")
    except FileNotFoundError as error:
        raise not_found(
            f"no log of {place.name} in {place.parent}: logs are kept where a job was submitted"
        ) from error
    with file:
        with suppress(FileNotFoundError), older_half(place / LOG).open("rb") as older:
            while data := older.read(_READ_BYTES):
                yield data
        is_over = not follow
        while True:
            while data := file.read(_READ_BYTES):
                yield data
            if is_over:
                return
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # it had grown too large and was emptied
            # Before the last read, so that what was written last is shown.
            is_over = not _is_supervised(place)
            if not is_over:
                time.sleep(_FOLLOW_PERIOD_S)


def _is_supervised(place: Path) -> bool:
    if read_end(place) is not None:
        return False
    try:
        return places.is_running(int((place / SUPERVISOR).read_text()))
    except FileNotFoundError:  # it is just being started, or its start was cut short
        return time.time() - (place / ORDER).stat().st_mtime < _START_S
