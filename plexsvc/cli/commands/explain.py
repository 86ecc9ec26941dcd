"""`plexctl explain`: why an operation or a job waits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from plexsvc.cli.app import At

_OPERATION_DIGITS: Final = 32


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
    from plexclient.wire.v1 import service_pb2

    operation_id = _operation_id(operation)
    request = service_pb2.ExplainRequest(
        operation_id=operation_id, job_id=job if operation_id else operation
    )
    with at.router() as router:
        reply = router.ExplainOperation(request)
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
