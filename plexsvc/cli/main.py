"""`plexctl`: the command line of the service. Each command imports what it needs when it runs."""

# ruff: noqa: PLR0913, PLR0917 - a command's parameters are its options
from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

from plexsvc.cli.replay import replay
from plexsvc.cli.simulate import simulate

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from plexsvc.cli.places import Card

MISUSED: Final = 2
FAILED: Final = 1
_REFRESH_S: Final = 0.5


class _Commands(typer.core.TyperGroup):
    """Turns a `PlexError` into its message on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as typer's own
        try:
            return super().invoke(ctx)
        except Exception as error:
            raise _exit_for(error) from error


def _exit_for(error: Exception) -> Exception:
    errors = sys.modules.get("plexsvc.errors")  # not imported: no such error was ever made
    if errors is None or not isinstance(error, errors.PlexError):
        return error
    typer.echo(str(error), err=True)
    return typer.Exit(MISUSED if error.code == errors.ErrorCode.BAD_REQUEST else FAILED)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Run many LLM-RL jobs on the same accelerators.",
    epilog="Example: plexctl up --detach && plexctl submit --name math loop.py",
)
job_app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="List and cancel jobs.",
    epilog="Example: plexctl job list",
)
app.add_typer(job_app, name="job")

StateDir = Annotated[
    Path | None,
    typer.Option(
        envvar="PLEX_STATE_DIR",
        help="The cluster's directory; by default ~/.local/state/plexsvc.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(envvar="PLEX_ADDRESS", help="The cluster's router, instead of --state-dir."),
]
Token = Annotated[str | None, typer.Option(envvar="PLEX_TOKEN", help="Your token.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


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
    from plexsvc.cli import up as command

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
        float, typer.Option(help="Seconds without a sign of life that end the job; 0: default.")
    ] = 0.0,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Run a controller as a job: detached, its output kept as the job's log."""
    from plexsvc.cli import jobs, places

    place = _state_dir(state_dir)
    job_id = jobs.submit(
        _card(state_dir, address=address, token=token),
        state_dir=place,
        name=name or Path(script).stem,
        argv=(script, *(args or ())),
        env=dict(_pair(item) for item in env or ()),
        session_ttl_us=int(session_ttl * 1e6),
    )
    directory = places.job_dir(place, job_id)
    if json:
        _print_json({"job_id": job_id, "log": str(directory / jobs.LOG)})
    else:
        typer.echo(job_id)
    if attach:
        _write_bytes(jobs.read_log(directory, follow=True))
        _exit_like(directory)


@app.command(epilog="Example: plexctl status --watch")
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep it on the screen until Ctrl-C.")
    ] = False,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show jobs with step, phase and reward, and who is on the devices."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cli.calls import router

    with router(_card(state_dir, address=address, token=token)) as calls:

        def ask() -> service_pb2.ClusterStatus:
            request = service_pb2.GetStatusRequest()
            return calls.call("GetStatus", request, service_pb2.ClusterStatus)

        if json:
            _print_message(ask())
        elif watch:
            _watch(ask)
        else:
            from rich.console import Console

            from plexsvc.cli.view import status_view

            Console().print(status_view(ask()))


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
    from plexsvc.cli import jobs, places

    directory = places.job_dir(_state_dir(state_dir), job)
    chunks = jobs.read_log(directory, follow=follow)
    if json:
        text = b"".join(chunks).decode(errors="replace")
        _print_json({"job_id": job, "lines": text.splitlines()})
    else:
        _write_bytes(chunks)


@app.command(epilog="Example: plexctl demo arithmetic --out runs/demo")
def demo(
    preset: Annotated[str, typer.Argument(help="arithmetic or waits.")] = "arithmetic",
    out: Annotated[Path, typer.Option(help="Where figures and summary go.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Run two real RL jobs on one device and show what sharing it gives."""
    from plexsvc.cli.demo import run

    raise typer.Exit(run(preset, out, json))


app.command(epilog="Example: plexctl simulate --preset cluster-256 --policy plex --json")(simulate)
app.command(epilog="Example: plexctl replay ~/.local/state/plexsvc/plexsvc.db --json")(replay)


@app.command(epilog="Example: plexctl explain op_1f0c9a3b7d52e6a84f11c0de55aa9b3d")
def explain(
    operation: Annotated[
        str, typer.Argument(help="The operation's id in hex, with or without op_.")
    ],
    job: Annotated[str, typer.Option(help="The job it belongs to.")] = "",
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Say why an operation waits, or what became of it."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cli.calls import router

    request = service_pb2.ExplainRequest(operation_id=_operation_id(operation), job_id=job)
    with router(_card(state_dir, address=address, token=token)) as calls:
        reply = calls.call("ExplainOperation", request, service_pb2.ExplainReply)
    if json:
        _print_message(reply)
    else:
        typer.echo("\n".join([reply.text, *(f"  {fact}" for fact in reply.facts)]))


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
    from plexsvc.cli.calls import router

    request = service_pb2.ListJobsRequest(include_ended=all_jobs)
    with router(_card(state_dir, address=address, token=token)) as calls:
        reply = calls.call("ListJobs", request, service_pb2.ListJobsReply)
    if json:
        _print_message(reply)
        return
    from rich.console import Console

    from plexsvc.cli.view import jobs_view

    Console().print(jobs_view(list(reply.jobs)))


@job_app.command("cancel", epilog="Example: plexctl job cancel job-1f0c9a3b7d52")
def job_cancel(
    job: Annotated[str, typer.Argument(help="The job's id.")],
    reason: Annotated[str, typer.Option(help="Kept with the job.")] = "cancelled by plexctl",
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Cancel a job: its running operation ends, its devices are freed, its controller stops."""
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cli.calls import router

    request = service_pb2.EndJobRequest(
        job_id=job, outcome=service_pb2.JOB_STATE_CANCELLED, reason=reason
    )
    with router(_card(state_dir, address=address, token=token)) as calls:
        reply = calls.call("EndJob", request, service_pb2.Job, timeout_s=60)
    if json:
        _print_message(reply)
    else:
        from plexsvc.cli.view import state_name

        typer.echo(f"{reply.job_id} {state_name(reply)}")


def _state_dir(given: Path | None) -> Path:
    from plexsvc.cli.places import default_state_dir

    return given or default_state_dir()


def _card(state_dir: Path | None, *, address: str | None, token: str | None) -> Card:
    from plexsvc.cli.places import find_cluster

    return find_cluster(_state_dir(state_dir), address=address, token=token)


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"--env {item!r} is not KEY=VALUE")
    return key, value


def _operation_id(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("op_"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not an operation id: give it in hex") from error


def _print_card(card: Card, *, state_dir: Path, json: bool) -> None:
    if json:
        _print_json({"address": card.address, "state_dir": str(state_dir), "pid": card.pid})
    else:
        typer.echo(f"plexsvc serves at {card.address}, state in {state_dir}, pid {card.pid}")


def _print_json(value: object) -> None:
    typer.echo(jsonlib.dumps(value))


def _print_message(message: Message) -> None:
    from google.protobuf.json_format import MessageToDict

    _print_json(
        MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )


def _write_bytes(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def _exit_like(directory: Path) -> None:
    from plexsvc.cli import jobs

    end = jobs.read_end(directory)
    if end is None:
        typer.echo("the job's supervisor died before it recorded the end", err=True)
    elif end.outcome != "completed":
        typer.echo(f"{end.outcome}: {end.reason}", err=True)
    raise typer.Exit(0 if end is not None and end.outcome == "completed" else FAILED)


def _watch(ask: Any) -> None:  # noqa: ANN401 - a callable of a type that is imported later
    import time

    from rich.live import Live

    from plexsvc.cli.view import status_view

    with Live(status_view(ask()), refresh_per_second=1 / _REFRESH_S) as live:
        try:
            while True:
                time.sleep(_REFRESH_S)
                live.update(status_view(ask()))
        except KeyboardInterrupt:
            return


def main() -> None:
    """Run `plexctl`."""
    app()


if __name__ == "__main__":
    main()
