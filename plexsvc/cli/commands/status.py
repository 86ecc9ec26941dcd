"""`plexctl status`, `state`, `top` and `explain`: jobs, devices, state, and why one waits."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Any, Final

import typer

from plexsvc.cli.app import At, console, live, print_json
from plexsvc.cli.commands.pack import Window

_STATUS_REFRESH_S: Final = 0.5
_TOP_REFRESH_S: Final = 1.0
_OPERATION_DIGITS: Final = 32


def status(
    at: At,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Keep it on the screen until Ctrl-C; in a pipe: once."),
    ] = False,
) -> None:
    """Show jobs with step, phase and reward, and who is on the devices."""
    from plexsvc.show.status import status_view

    if watch and not at.json:
        live((status_view(at.ask("GetStatus")) for _ in count()), every_s=_STATUS_REFRESH_S)
    else:
        reply = at.ask("GetStatus")
        at.show(reply, status_view(reply))


def state(at: At) -> None:
    """Show what devices, host memory and disks hold, whose state is where, and what moves."""
    from plexsvc.show.state import state_view

    reply = at.ask("ListNodes")
    at.show(reply, state_view(reply.nodes))


def top(at: At, window: Window = 0.0) -> None:
    """Keep jobs, devices, rollout instances and rings of groups on the screen until Ctrl-C.

    In a pipe, and with --json, they are printed once.
    """
    from rich.console import Group

    from plexsvc.show.instances import instances_view
    from plexsvc.show.pack import pack_view
    from plexsvc.show.status import status_view

    def ask() -> tuple[Any, Any, Any]:
        pack = at.ask("GetPack", window_us=round(window * 1e6))
        return at.ask("GetStatus"), at.ask("ListInstances"), pack

    if at.json:
        from plexsvc.rpc.services import to_dict

        names = ("status", "instances", "pack")
        print_json({name: to_dict(one) for name, one in zip(names, ask(), strict=True)})
        return
    width = console().width
    views = (
        Group(status_view(status), instances_view(instances), pack_view(pack, width=width))
        for status, instances, pack in (ask() for _ in count())
    )
    live(views, every_s=_TOP_REFRESH_S)


def explain(
    at: At,
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OP|JOB", help="An operation's id in hex, with or without op_; or a job's id."
        ),
    ],
    job: Annotated[str, typer.Option(help="The job the operation belongs to.")] = "",
) -> None:
    """Say why an operation waits, what became of it, or what a job's deployments wait for."""
    operation_id = _operation_id(operation)
    job_id = job if operation_id else operation
    reply = at.ask("ExplainOperation", operation_id=operation_id, job_id=job_id)
    at.show(reply, "\n".join([reply.text, *(f"  {fact}" for fact in reply.facts)]))


def _operation_id(text: str) -> bytes:
    """Return an operation's id, empty for the id of a job."""
    if not text:
        raise typer.BadParameter("an operation's id or a job's is needed, this one is empty")
    is_operation = text.startswith("op_") or len(text) == _OPERATION_DIGITS
    if not is_operation:
        return b""
    try:
        return bytes.fromhex(text.removeprefix("op_"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not an operation id: give it in hex") from error
