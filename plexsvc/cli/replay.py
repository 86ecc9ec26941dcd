"""`plexctl replay`: plays a live journal through a fresh core and says whether it decides alike."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from plexsvc.scheduler.recording import Recording
    from plexsvc.sim.replay import Difference, Verdict

_DIFFERENT: Final = 1


def replay(
    journal: Annotated[
        str, typer.Argument(help="The cluster's database: a SQLite file, or an SQLAlchemy URL.")
    ],
    epoch: Annotated[
        int | None, typer.Option(help="Which scheduler's events; by default the newest's.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Replay a journal; exit 1 at the first event whose actions differ from the live ones."""
    from plexsvc.sim.replay import verify

    recorded = _read(journal, epoch=epoch)
    verdict = verify(recorded)
    if json:
        typer.echo(jsonlib.dumps(_values(verdict, recorded)))
    else:
        _show(verdict, recorded)
    if not verdict.is_identical:
        raise typer.Exit(_DIFFERENT)


def _read(source: str, *, epoch: int | None) -> Recording:
    from plexsvc.scheduler.journal import read
    from plexsvc.store.reader import read_journal

    return read(read_journal(source, epoch=epoch).rows)


def _values(verdict: Verdict, recorded: Recording) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "epoch": recorded.configured.epoch,
        "is_identical": verdict.is_identical,
        **asdict(verdict),
    }


def _show(verdict: Verdict, recorded: Recording) -> None:
    typer.echo(f"epoch {recorded.configured.epoch}: {verdict.events} events replayed")
    if verdict.difference is not None:
        _show_difference(verdict.difference)
        return
    untold = verdict.events - verdict.compared
    beside = f"; of the last {untold} the journal does not say" if untold else ""
    typer.echo(f"identical: {verdict.actions} actions of {verdict.compared} events{beside}")


def _show_difference(found: Difference) -> None:
    typer.echo(f"different from row {found.idx} on: {found.why}")
    typer.echo(f"event     {found.kind} {found.event}")
    for line in found.replayed or ("nothing",):
        typer.echo(f"replayed  {line}")
    if found.recorded is None:
        typer.echo("recorded  digests only; set scheduler.journal_actions to keep the actions")
        return
    for line in found.recorded or ("nothing",):
        typer.echo(f"recorded  {line}")
