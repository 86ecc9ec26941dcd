"""`plexctl job`: list, cancel, move, pin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plexsvc.cli.options import (
    Address,
    Commands,
    Json,
    StateDir,
    Token,
    calls_to,
    print_message,
    show,
)

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cluster.calls import RouterCalls

job_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List, cancel, move and pin jobs.",
    epilog="Example: plexctl job list",
)
JobId = Annotated[str, typer.Argument(help="The job's id.")]


@job_app.command("list", epilog="Example: plexctl job list --all")
def job_list(
    all_jobs: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """List your jobs."""
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.ListJobsRequest(include_ended=all_jobs)
    with calls_to(state_dir, address=address, token=token) as calls:
        reply = calls.call("ListJobs", request, service_pb2.ListJobsReply)
    if json:
        print_message(reply)
        return
    from plexsvc.show.status import jobs_view

    show(jobs_view(list(reply.jobs)))


@job_app.command("cancel", epilog="Example: plexctl job cancel job-1f0c9a3b7d52")
def job_cancel(
    job: JobId,
    reason: Annotated[str, typer.Option(help="Kept with the job.")] = "cancelled by plexctl",
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Cancel a job: its running operation ends, its devices are freed, its controller stops."""
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.EndJobRequest(
        job_id=job, outcome=service_pb2.JOB_STATE_CANCELLED, reason=reason
    )
    with calls_to(state_dir, address=address, token=token) as calls:
        reply = calls.call("EndJob", request, service_pb2.Job, timeout_s=60)
    if json:
        print_message(reply)
    else:
        from plexsvc.show.status import state_name

        typer.echo(f"{reply.job_id} {state_name(reply)}")


@job_app.command("move", epilog="Example: plexctl job move job-1f0c9a3b7d52 --to node-b")
def job_move(
    job: JobId,
    to: Annotated[str, typer.Option(help="The node; by default wherever it fits best.")] = "",
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Move a job's training deployments to other devices while it goes on (operators)."""
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.MoveJobRequest(job_id=job, node_id=to)
    with calls_to(state_dir, address=address, token=token) as calls:
        reply = calls.call("MoveJob", request, service_pb2.MovesReply)
    if json:
        print_message(reply)
        return
    from plexsvc.show.pack import moves_view

    show(moves_view(reply))


@job_app.command("pin", epilog="Example: plexctl job pin job-1f0c9a3b7d52")
def job_pin(
    job: JobId,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Keep a job on its devices: repacking leaves it alone (operators)."""
    with calls_to(state_dir, address=address, token=token) as calls:
        _print_pin(_pin(calls, job, is_pinned=True), json=json)


@job_app.command("unpin", epilog="Example: plexctl job unpin job-1f0c9a3b7d52")
def job_unpin(
    job: JobId,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Let repacking move a job again (operators)."""
    with calls_to(state_dir, address=address, token=token) as calls:
        _print_pin(_pin(calls, job, is_pinned=False), json=json)


def _pin(calls: RouterCalls, job: str, *, is_pinned: bool) -> service_pb2.PinJobReply:
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.PinJobRequest(job_id=job, is_pinned=is_pinned)
    return calls.call("PinJob", request, service_pb2.PinJobReply)


def _print_pin(reply: service_pb2.PinJobReply, *, json: bool) -> None:
    if json:
        print_message(reply)
    else:
        typer.echo(f"{reply.job_id} {'pinned' if reply.is_pinned else 'unpinned'}")
