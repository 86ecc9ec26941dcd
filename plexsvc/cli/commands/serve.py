"""`plexctl serve`: run a serving engine that may lend what it does not need; read its report."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plexsvc.cli.app import Commands, Json, StateDir, print_json, state_dir_of

if TYPE_CHECKING:
    from plexsvc.rollout.core.lending import Terms
    from plexsvc.rollout.serving.announcing import Tell
    from plexsvc.rollout.serving.config import ServingConfig

US = 1_000_000
MAX_OBJECTIVE_S = 86_400
HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|24:00)", re.ASCII)

LendModel = Annotated[
    list[Path] | None,
    typer.Option(help="Model of jobs, may be given again; by default the one that is served."),
]
LendCluster = Annotated[
    Path | None, typer.Option(help="State directory of the cluster whose jobs may have it.")
]
LendInstance = Annotated[
    list[str] | None,
    typer.Option(help="HOST:PORT of a model's instance, one each; by default on this host."),
]


class _Serve(Commands):
    """Takes `plexctl serve MODEL` for `plexctl serve start MODEL`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is meant."""
        known = args and (args[0] in self.commands or args[0].startswith("-"))
        return super().resolve_command(ctx, args if known else ["start", *args])


serve_app = typer.Typer(
    cls=_Serve,
    no_args_is_help=True,
    help="Serve a model, and lend what that leaves to RL jobs.",
    epilog="Example: plexctl serve models/chat --slo-ttft 0.5 --slo-tpot 0.15 --lend",
)


@serve_app.command(
    epilog="Example: plexctl serve models/chat --slo-ttft 0.5 --slo-tpot 0.15 --lend"
)
def start(  # noqa: PLR0913, PLR0917 - the options of a command
    model: Annotated[Path, typer.Argument(help="Hugging Face directory; ./report if so named.")],
    slo_ttft: Annotated[float, typer.Option(help="Objective: seconds to the first token.")],
    slo_tpot: Annotated[float, typer.Option(help="Objective: seconds per further token.")],
    name: Annotated[str, typer.Option(help="Its name; by default the directory's.")] = "",
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 8000,
    lend: Annotated[bool, typer.Option("--lend", help="Lend idle time and memory.")] = False,
    lend_model: LendModel = None,
    lend_share: Annotated[float, typer.Option(help="Most of time and memory to lend.")] = 1.0,
    lend_hours: Annotated[str, typer.Option(help="When to lend, UTC, as 22:00-06:00.")] = "",
    cluster: LendCluster = None,
    lend_price: Annotated[float, typer.Option(help="What they pay for it, an hour.")] = 0.0,
    lend_owner: Annotated[str, typer.Option(help="The tenant whose engine it is.")] = "",
    lend_to: Annotated[
        list[str] | None, typer.Option(help="Tenants whose jobs may have it; by default, all.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The cluster's keys; by default, in its state directory.")
    ] = None,
    instance: LendInstance = None,
    max_model_len: Annotated[int, typer.Option(help="Longest sequence; 0: the model's.")] = 0,
    kv_bytes: Annotated[int, typer.Option(help="KV memory, the lent part included.")] = 256 << 20,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Serve a model by vLLM's OpenAI application until TERM or Ctrl-C."""
    from plexsvc.cluster.calls import lending_to
    from plexsvc.cluster.doctor import available_bytes
    from plexsvc.cluster.places import find_cluster, keys_file
    from plexsvc.rollout.core.lending import Objectives, refuse
    from plexsvc.rollout.serving import process
    from plexsvc.rollout.serving.config import ServingConfig

    named = name or model.resolve().name
    card = None if cluster is None else find_cluster(cluster, address=None, token=None)
    objectives = Objectives(ttft_us=_us("slo_ttft", slo_ttft), tpot_us=_us("slo_tpot", slo_tpot))
    config = ServingConfig(
        model=model,
        name=named,
        objectives=objectives,
        socket=_socket(state_dir, named),
        host=host,
        port=port,
        max_model_len=max_model_len,
        kv_bytes=kv_bytes,
        guests=tuple(lend_model or [model]) if lend else (),
        terms=_terms(lend_share, lend_hours),
        keys_file=keys if cluster is None else keys or keys_file(cluster),
        instances=tuple(instance or ()) if lend else (),
        price=lend_price,
        owner=lend_owner,
        lend_to=tuple(lend_to or ()),
    )
    process.check(config, available_bytes=available_bytes())
    terms = (lend_share, lend_hours, lend_model or None, cluster, instance or None)
    if not lend and terms != (1.0, "", None, None, None):
        raise refuse("lend", "is not given, and terms of lending are; add --lend, or drop them")
    _serve(config, None if card is None else lending_to(card), lends=lend, json=json)


def _serve(config: ServingConfig, tell: Tell | None, *, lends: bool, json: bool) -> None:
    """Serve until TERM or Ctrl-C; say where once it is ready."""
    from plexsvc.rollout.preload import ZYGOTE_ENV, preload
    from plexsvc.rollout.serving import process

    def ready(address: str) -> None:
        if json:
            print_json({"address": address, "name": config.name, "lends": lends})
        else:
            typer.echo(f"{config.name} is served at {address}{', and lends' if lends else ''}")

    with process.listening(config) as listener:
        os.environ.update(ZYGOTE_ENV)
        gc.disable()  # passes over what is imported took a fifth of the time, and free nothing
        preload()
        gc.freeze()
        gc.enable()
        process.main(config, listener, ready=ready, tell=tell)


@serve_app.command(epilog="Example: plexctl serve report chat --json")
def report(
    name: Annotated[str, typer.Argument(help="The engine's name.")],
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show TTFT and TPOT with and without lending, and what was harvested."""
    found = turn(name, "report", state_dir)
    if json:
        print_json(found)
        return
    from plexsvc.cli.app import console
    from plexsvc.show.serving import report_view

    console().print(report_view(found))


def turn(name: str, switch: str, state_dir: Path | None) -> dict[str, Any]:
    """Return what an engine of this machine answers to a switch."""
    import asyncio

    from plexsvc.rollout.serving.control import ask

    return asyncio.run(ask(_socket(state_dir, name), switch))


def _socket(state_dir: Path | None, name: str) -> Path:
    return state_dir_of(state_dir) / "serving" / f"{name}.sock"


def _us(field: str, seconds: float) -> int:
    from plexsvc.rollout.core.lending import refuse

    if not 1 / US <= seconds <= MAX_OBJECTIVE_S:
        text = f"is {seconds}; an objective is a number of seconds above 0, up to {MAX_OBJECTIVE_S}"
        raise refuse(field, text)
    return round(seconds * US)


def _terms(share: float, hours: str) -> Terms:
    from plexsvc.rollout.core.lending import DAY_MIN, Terms, refuse

    if not hours:
        return Terms(share=share)
    found = HOURS.fullmatch(hours)
    if found is None:
        raise refuse("lend_hours", f"is {hours!r}; write it as 22:00-06:00")
    first, last = (60 * int(found[at] or 0) + int(found[at + 1] or 0) for at in (1, 3))
    return Terms(share=share, from_min=first, to_min=last or DAY_MIN)
