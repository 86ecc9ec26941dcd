"""`plexctl`, the command line of the service. Each command imports what it needs when it runs."""

# ruff: noqa: PLR0913, PLR0917 - a command's parameters are its options
from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plexsvc.cli.commands.job import job_app
from plexsvc.cli.commands.node import node_app
from plexsvc.cli.commands.pack import pack, top
from plexsvc.cli.commands.replay import replay
from plexsvc.cli.commands.report import report
from plexsvc.cli.commands.simulate import simulate
from plexsvc.cli.options import (
    FAILED,
    Address,
    Commands,
    Json,
    StateDir,
    Token,
    calls_to,
    card_of,
    live,
    print_json,
    print_message,
    show,
    state_dir_of,
)

if TYPE_CHECKING:
    from plexsvc.cluster.places import Card

_REFRESH_S: Final = 0.5
_OPERATION_DIGITS: Final = 32

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Run many LLM-RL jobs on the same accelerators.",
    epilog="Example: plexctl up --detach && plexctl submit --name math loop.py",
)
app.add_typer(job_app, name="job")
app.add_typer(node_app, name="node")


@app.command(epilog="Example: plexctl up --config cluster.toml --detach")
def up(
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the cluster; without one: one small node.")
    ] = None,
    state_dir: StateDir = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once it serves; it runs on.")
    ] = False,
    json: Json = False,
) -> None:
    """Start a cluster on this machine and serve until TERM or Ctrl-C."""
    from plexsvc.cli.commands import up as command

    cluster = command.read_config(config, state_dir=state_dir)
    if detach:
        card = command.detach(cluster, config_path=config)
        _print_card(card, state_dir=cluster.state_dir, json=json)
    else:
        command.serve(
            cluster, on_up=lambda card: _print_card(card, state_dir=cluster.state_dir, json=json)
        )


@app.command(
    epilog="Example: plexctl submit --name math --attach loop.py --steps 100",
    context_settings={"allow_interspersed_args": False},
)
def submit(
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
        typer.Option(
            min=0, max=1e9, help="Seconds without a sign of life that end the job; 0: default."
        ),
    ] = 0.0,
    priority: Annotated[
        int,
        typer.Option(
            min=-(2**31), max=2**31 - 1, help="Of jobs that wait for devices, higher go first."
        ),
    ] = 0,
    max_slowdown: Annotated[
        float, typer.Option(help="How much longer a cycle may get by sharing; 0: default.")
    ] = 0.0,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Run a controller as a job: detached, its output kept as the job's log."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cluster import places
    from plexsvc.controllers import submit as controllers

    place = state_dir_of(state_dir)
    job_id = controllers.submit(
        card_of(state_dir, address=address, token=token),
        state_dir=place,
        name=name or Path(script).stem,
        argv=(script, *(args or ())),
        env=dict(_pair(item) for item in env or ()),
        terms=service_pb2.CreateJobRequest(
            session_ttl_us=int(session_ttl * 1e6),
            priority=priority,
            max_slowdown=max_slowdown,
        ),
    )
    directory = places.job_dir(place, job_id)
    if json:
        print_json({"job_id": job_id, "log": str(directory / controllers.LOG)})
    else:
        typer.echo(job_id)
    if attach:
        _write_bytes(controllers.read_log(directory, follow=True))
        _exit_like(directory)


@app.command(epilog="Example: plexctl status --watch")
def status(
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Keep it on the screen until Ctrl-C; in a pipe: once."),
    ] = False,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show jobs with step, phase and reward, and who is on the devices."""
    from plexclient.wire.v1 import service_pb2

    with calls_to(state_dir, address=address, token=token) as calls:

        def ask() -> service_pb2.ClusterStatus:
            request = service_pb2.GetStatusRequest()
            return calls.call("GetStatus", request, service_pb2.ClusterStatus)

        if json:
            print_message(ask())
            return
        from plexsvc.show.status import status_view

        if watch:
            live((status_view(ask()) for _ in count()), every_s=_REFRESH_S)
        else:
            show(status_view(ask()))


@app.command(epilog="Example: plexctl logs job-1f0c9a3b7d52 --follow")
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


@app.command(epilog="Example: plexctl demo arithmetic --out runs/demo")
def demo(
    preset: Annotated[str, typer.Argument(help="arithmetic or waits.")] = "arithmetic",
    out: Annotated[Path, typer.Option(help="Where figures and summary go.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Run two real RL jobs on one device and show what sharing it gives."""
    from plexsvc.demo import run

    raise typer.Exit(run(preset, out, json))


app.command(epilog="Example: plexctl simulate --preset cluster-256 --policy plex --json")(simulate)
app.command(epilog="Example: plexctl replay ~/.local/state/plexsvc/plexsvc.db --json")(replay)


@app.command(epilog="Example: plexctl explain job-1f0c9a3b7d52")
def explain(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OP|JOB", help="An operation's id in hex, with or without op_; or a job's id."
        ),
    ],
    job: Annotated[str, typer.Option(help="The job the operation belongs to.")] = "",
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Say why an operation waits, what became of it, or what a job's deployments wait for."""
    from plexclient.wire.v1 import service_pb2

    operation_id = _operation_id(operation)
    request = service_pb2.ExplainRequest(
        operation_id=operation_id, job_id=job if operation_id else operation
    )
    with calls_to(state_dir, address=address, token=token) as calls:
        reply = calls.call("ExplainOperation", request, service_pb2.ExplainReply)
    if json:
        print_message(reply)
    else:
        typer.echo("\n".join([reply.text, *(f"  {fact}" for fact in reply.facts)]))


app.command(epilog="Example: plexctl pack --window 120 --png pack.png")(pack)
app.command(epilog="Example: plexctl report --json")(report)
app.command(epilog="Example: plexctl top --window 60")(top)


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"--env {item!r} is not KEY=VALUE")
    return key, value


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


def _print_card(card: Card, *, state_dir: Path, json: bool) -> None:
    if json:
        print_json({"address": card.address, "state_dir": str(state_dir), "pid": card.pid})
    else:
        typer.echo(f"plexsvc serves at {card.address}, state in {state_dir}, pid {card.pid}")


def _write_bytes(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def _exit_like(directory: Path) -> None:
    from plexsvc.controllers import submit as controllers

    end = controllers.read_end(directory)
    if end is None:
        typer.echo("the job's supervisor died before it recorded the end", err=True)
    elif end.outcome != "completed":
        typer.echo(f"{end.outcome}: {end.reason}", err=True)
    raise typer.Exit(0 if end is not None and end.outcome == "completed" else FAILED)


def main() -> None:
    """Run `plexctl`."""
    app()


if __name__ == "__main__":
    main()
