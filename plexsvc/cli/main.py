"""`plexctl`, the command line of the service. Each command imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plexsvc.cli.app import Commands, Json, StateDir, command, print_json
from plexsvc.cli.commands.ckpt import ckpt_app
from plexsvc.cli.commands.instance import instance_app
from plexsvc.cli.commands.job import job_app
from plexsvc.cli.commands.model import model_app
from plexsvc.cli.commands.node import node_app
from plexsvc.cli.commands.pack import pack, wanted
from plexsvc.cli.commands.plan import plan
from plexsvc.cli.commands.quota import quota_app
from plexsvc.cli.commands.replay import replay
from plexsvc.cli.commands.reward import reward_app
from plexsvc.cli.commands.serve import serve_app
from plexsvc.cli.commands.simulate import simulate
from plexsvc.cli.commands.status import explain, state, status, top
from plexsvc.cli.commands.submit import logs, submit
from plexsvc.cli.commands.token import token_app
from plexsvc.cli.commands.traces import traces
from plexsvc.cli.commands.usage import cost, report, tenant

if TYPE_CHECKING:
    from plexsvc.cluster.places import Card

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Run many LLM-RL jobs on the same accelerators.",
    epilog="Example: plexctl up --detach && plexctl submit --name math loop.py",
)


@app.command(epilog="Example: plexctl up --config cluster.toml --detach")
def up(
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the cluster; without one: one small node.")
    ] = None,
    state_dir: StateDir = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory in which your models, checkpoints and exports may lie, besides "
            "`models` and `checkpoints` in the state directory; may be given again."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once it serves; it runs on.")
    ] = False,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="Wait while another service leads; then go on with what it ran."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Start a cluster on this machine and serve until TERM or Ctrl-C."""
    from plexsvc.cli.commands import up as command
    from plexsvc.errors import bad_request

    cluster = command.read_config(config, state_dir=state_dir, roots=root or ())
    if detach and standby:
        raise bad_request("--detach returns once it serves, and --standby waits: give one")
    if detach:
        card = command.detach(cluster, config_path=config, roots=root or ())
        _print_card(card, state_dir=cluster.state_dir, json=json)
    else:
        command.serve(
            cluster,
            waits=standby,
            on_up=lambda card: _print_card(card, state_dir=cluster.state_dir, json=json),
        )


@app.command(epilog="Example: plexctl down --keep")
def down(
    state_dir: StateDir = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="End the service alone; the next `up` adopts its jobs."),
    ] = False,
    json: Json = False,
) -> None:
    """Stop the cluster that runs on this machine, and every process of it."""
    from plexsvc.cli.app import state_dir_of
    from plexsvc.cli.commands import up as command

    place = state_dir_of(state_dir)
    pid = command.stop(place, keep=keep)
    if json:
        print_json({"state_dir": str(place), "pid": pid})
    else:
        told = f"stopped pid {pid} in {place}" if pid else f"no cluster runs in {place}"
        typer.echo(told)


@app.command(epilog="Example: plexctl demo arithmetic --out runs/demo")
def demo(
    preset: Annotated[
        str, typer.Argument(help="arithmetic, waits, code, spot or serving.")
    ] = "arithmetic",
    out: Annotated[Path, typer.Option(help="Where figures and summary go.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Run two real RL jobs on one device and show what sharing it gives."""
    from plexsvc.demo.runner import run_demo

    raise typer.Exit(run_demo(preset, out_dir=out, as_json=json))


@app.command(epilog="Example: plexctl doctor --json")
def doctor(
    state_dir: StateDir = None,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Examine every node instead; on the service's host, as its user."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Say whether this machine can run the service, what isolates untrusted code, and what to do.

    With --cluster: whether each node answers, has the service's versions and models, reaches the
    others' ports, tells the time and has disk. Exit status 1 where something failed.
    """
    from plexsvc.cli.commands import doctor as command

    raise typer.Exit(command.doctor(state_dir, cluster=cluster, json=json))


def _print_card(card: Card, *, state_dir: Path, json: bool) -> None:
    page = card.http and f"{'https' if card.ca else 'http'}://{card.http}/"
    if json:
        facts = {"address": card.address, "page": page}
        print_json(facts | {"state_dir": str(state_dir), "pid": card.pid})
    else:
        typer.echo(f"plexsvc serves at {card.address}, state in {state_dir}, pid {card.pid}")
        if page:
            typer.echo(
                f"page to look at it: {page}, with the token in {state_dir / 'cluster.json'}"
            )


command(
    app,
    example="plexctl submit --name math --attach loop.py --steps 100",
    context_settings={"allow_interspersed_args": False},
)(submit)
command(app, example="plexctl status --watch")(status)
command(app, example="plexctl state --json")(state)
app.command(epilog="Example: plexctl logs job-1f0c9a3b7d52 --follow")(logs)
app.command(epilog="Example: plexctl simulate --preset cluster-256 --policy plex --json")(simulate)
app.command(epilog="Example: plexctl replay ~/.local/state/plexsvc/plexsvc.db --json")(replay)
app.command(
    epilog="Example: plexctl traces ~/.local/state/plexsvc/plexsvc.db --to http://collector:4318"
)(traces)
command(app, example="plexctl explain job-1f0c9a3b7d52")(explain)
command(app, example="plexctl pack --window 120")(pack)
app.command(epilog="Example: plexctl plan models/qwen3-8b --gpus 8x80 --tokens 32768 --jobs 4")(
    plan
)
command(app, example="plexctl wanted --json")(wanted)
command(app, example="plexctl report --json")(report)
command(app, example="plexctl cost --since 30d --csv")(cost)
command(app, example="plexctl tenant")(tenant)
command(app, example="plexctl top --window 60")(top)
app.add_typer(ckpt_app, name="ckpt")
app.add_typer(instance_app, name="instance")
app.add_typer(job_app, name="job")
app.add_typer(model_app, name="model")
app.add_typer(node_app, name="node")
app.add_typer(quota_app, name="quota")
app.add_typer(reward_app, name="reward")
app.add_typer(serve_app, name="serve")
app.add_typer(token_app, name="token")


def main() -> None:
    """Run `plexctl`."""
    app()


if __name__ == "__main__":
    main()
