"""`plexctl job`: list, cancel, move, pin."""

from __future__ import annotations

from typing import Annotated

import typer

from plexsvc.cli.app import At, Commands, command

job_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List, cancel, move and pin jobs.",
    epilog="Example: plexctl job list",
)
JobId = Annotated[str, typer.Argument(help="The job's id.")]


@command(job_app, "list", example="plexctl job list --all")
def job_list(
    at: At,
    all_jobs: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
) -> None:
    """List your jobs."""
    from plexsvc.show.status import jobs_view

    reply = at.ask("ListJobs", include_ended=all_jobs)
    at.show(reply, jobs_view(list(reply.jobs)))


@command(job_app, "cancel", example="plexctl job cancel job-1f0c9a3b7d52")
def job_cancel(
    at: At,
    job: JobId,
    reason: Annotated[str, typer.Option(help="Kept with the job.")] = "cancelled by plexctl",
) -> None:
    """Cancel a job: its running operation ends, its devices are freed, its controller stops."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.status import state_name

    reply = at.ask(
        "EndJob", job_id=job, outcome=service_pb2.JOB_STATE_CANCELLED, reason=reason, timeout_s=60
    )
    at.show(reply, f"{reply.job_id} {state_name(reply)}")


@command(job_app, "move", example="plexctl job move job-1f0c9a3b7d52 --to node-b")
def job_move(
    at: At,
    job: JobId,
    to: Annotated[str, typer.Option(help="The node; by default wherever it fits best.")] = "",
) -> None:
    """Move a job's training deployments to other devices while it goes on (operators)."""
    from plexsvc.show.pack import moves_view

    reply = at.ask("MoveJob", job_id=job, node_id=to)
    at.show(reply, moves_view(reply))


@command(job_app, "pin", example="plexctl job pin job-1f0c9a3b7d52")
def job_pin(at: At, job: JobId) -> None:
    """Keep a job on its devices: repacking leaves it alone (operators)."""
    _pin(at, job, is_pinned=True)


@command(job_app, "unpin", example="plexctl job unpin job-1f0c9a3b7d52")
def job_unpin(at: At, job: JobId) -> None:
    """Let repacking move a job again (operators)."""
    _pin(at, job, is_pinned=False)


def _pin(at: At, job: str, *, is_pinned: bool) -> None:

    reply = at.ask("PinJob", job_id=job, is_pinned=is_pinned)
    at.show(reply, f"{reply.job_id} {'pinned' if reply.is_pinned else 'unpinned'}")
