"""`plexctl submit` and `plexctl logs`: run a controller as a job, and read its output."""

# ruff: noqa: PLR0913, PLR0917 - a command's parameters are its options
from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from plexsvc.cli.app import FAILED, At, Json, StateDir, print_json, state_dir_of

INTERRUPTED: Final = 130
"""Exit code of a command that Ctrl-C ended."""

Priority = Annotated[
    int,
    typer.Option(
        min=-(2**31),
        max=2**31 - 1,
        help="Of jobs that wait, higher go first; above 0 by an operator's grant.",
    ),
]


def submit(
    at: At,
    script: Annotated[str, typer.Argument(help="The controller: a Python script.")],
    args: Annotated[
        list[str] | None, typer.Argument(help="Its arguments; everything after SCRIPT is its own.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job; by default the script's.")
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Follow its output; exit 0 when it completes, else 1.")
    ] = False,
    env: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the controller; may be repeated.")
    ] = None,
    session_ttl: Annotated[
        float,
        typer.Option(max=1e9, min=0, help="Seconds of silence that end the job; 0: default."),
    ] = 0.0,
    priority: Priority = 0,
    max_slowdown: Annotated[
        float, typer.Option(help="How much longer a cycle may get by sharing; 0: default.")
    ] = 0.0,
    expected_steps: Annotated[
        int,
        typer.Option(min=0, max=10**9, help="Rounds of its loop the job will train; 0: not said."),
    ] = 0,
    restarts: Annotated[
        int, typer.Option(min=0, help="Times it is started again when it dies; it resumes its job.")
    ] = 0,
) -> None:
    """Run a controller as a job: detached, its output kept as the job's log."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cluster import places
    from plexsvc.controllers import submit as controllers

    place = state_dir_of(at.state_dir)
    job_id = controllers.submit(
        at.card,
        state_dir=place,
        name=name or Path(script).stem,
        argv=(script, *(args or ())),
        env=dict(_pair(item) for item in env or ()),
        terms=service_pb2.CreateJobRequest(
            session_ttl_us=int(session_ttl * 1e6),
            priority=priority,
            max_slowdown=max_slowdown,
            expected_steps=expected_steps,
        ),
        restarts=restarts,
    )
    directory = places.job_dir(place, job_id)
    if at.json:
        print_json({"job_id": job_id, "log": str(directory / controllers.LOG)})
    else:
        typer.echo(job_id)
    if attach:
        raise typer.Exit(_attached(directory, job_id, state_dir=at.state_dir))


def logs(
    job: Annotated[str, typer.Argument(help="The job's id.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what is added until the job ends.")
    ] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Print the output of a job that was submitted on this machine."""
    from plexsvc.cluster import places
    from plexsvc.controllers import submit as controllers

    directory = places.job_dir(state_dir_of(state_dir), job)
    chunks = controllers.read_log(directory, follow=follow)
    if json:
        text = b"".join(chunks).decode(errors="replace")
        print_json({"job_id": job, "lines": text.splitlines()})
    else:
        _write_bytes(chunks)


def _attached(directory: Path, job_id: str, *, state_dir: Path | None) -> int:
    """Print a job's output until it ends; return the command's exit code."""
    from plexsvc.controllers import submit as controllers

    try:
        _write_bytes(controllers.read_log(directory, follow=True))
    except KeyboardInterrupt:
        _say_goes_on(job_id, state_dir=state_dir)
    end = controllers.read_end(directory)
    if end is None:
        typer.echo("the job's supervisor died before it recorded the end", err=True)
    elif end.outcome != "completed":
        typer.echo(f"{end.outcome}: {end.reason}", err=True)
    return 0 if end is not None and end.outcome == "completed" else FAILED


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"--env {item!r} is not KEY=VALUE")
    return key, value


def _write_bytes(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def _say_goes_on(job_id: str, *, state_dir: Path | None) -> NoReturn:
    """Say that the job goes on after Ctrl-C, and how to follow or end it."""
    there = "" if state_dir is None else f" --state-dir {state_dir}"
    typer.echo(
        f"\n{job_id} goes on. Its output: `plexctl logs --follow {job_id}{there}`; to end it: "
        f"`plexctl job cancel {job_id}{there}`",
        err=True,
    )
    raise typer.Exit(INTERRUPTED)
