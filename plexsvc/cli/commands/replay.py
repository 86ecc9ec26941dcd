"""`plexctl replay`: replay a journal and predict the run's length."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from plexsvc.scheduler.driver.encoding import JournalTail, Recording
    from plexsvc.sim.predict import Prediction, Wall
    from plexsvc.sim.replay import Difference, ReplayResult

_DIFFERENT: Final = 1


def replay(
    journal: Annotated[
        str, typer.Argument(help="The cluster's database: a SQLite file, or an SQLAlchemy URL.")
    ],
    epoch: Annotated[
        int | None, typer.Option(help="Which scheduler's events; by default the newest's.")
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Simulate its jobs and compare the wall time.")
    ] = False,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Part of the run that costs are fitted to.")
    ] = 0.5,
    out: Annotated[
        Path | None, typer.Option(help="Directory for a JSON line a job of the prediction.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Replay a journal; exit 1 at the first event whose actions differ from the live ones."""
    from plexsvc.scheduler.driver.encoding import Recording
    from plexsvc.sim.files import make_directory
    from plexsvc.sim.predict import predict as predict_run
    from plexsvc.sim.replay import verify

    is_predicted = predict or out is not None
    recorded = _read(journal, epoch=epoch, is_whole=is_predicted)
    if out is not None:
        make_directory(out)
    verdict = verify(recorded)
    found = None
    if isinstance(recorded, Recording):
        found = predict_run(recorded, share=share) if verdict.is_identical else None
        if found is None:
            typer.echo("not predicted: the journal tells of a run this core did not do", err=True)
    if json:
        from dataclasses import asdict

        told = {
            "epoch": recorded.configured.epoch,
            "is_this_build": recorded.configured.is_this_build,
            "is_identical": verdict.is_identical,
            **asdict(verdict),
        }
        typer.echo(jsonlib.dumps(told | ({} if found is None else {"predicted": _figures(found)})))
    else:
        _show(verdict, recorded)
        if found is not None:
            _show_prediction(found, share=share)
    if found is not None and out is not None:
        _write(found, out)
    if not verdict.is_identical:
        raise typer.Exit(_DIFFERENT)


def _figures(found: Prediction) -> dict[str, object]:
    from dataclasses import asdict

    jobs = {job_id: _wall(wall) for job_id, wall in found.jobs.items()}
    return asdict(found) | {"run": _wall(found.run), "jobs": jobs}


def _wall(wall: Wall) -> dict[str, float]:
    return {
        "measured_s": round(wall.measured_s, 3),
        "predicted_s": round(wall.predicted_s, 3),
        "shortest_s": round(min(wall.runs_s), 3),
        "longest_s": round(max(wall.runs_s), 3),
        "error": round(wall.error, 4),
    }


def _show_prediction(found: Prediction, *, share: float) -> None:
    typer.echo(
        f"\nsimulated with costs of the first {share:.0%}: {found.operations} operations, "
        f"{found.predicted_moves:.0f} moves (live {found.moves})"
    )
    typer.echo(f"{'':24} {'live':>10} {'simulated':>10} {'off by':>8}")
    for name, wall in {"run": found.run, **found.jobs}.items():
        typer.echo(
            f"{name:24} {wall.measured_s:8.2f} s {wall.predicted_s:8.2f} s {wall.error:+8.1%}"
        )
    if not found.is_complete:
        typer.echo("the simulated run ended before all were answered", err=True)


def _write(found: Prediction, out: Path) -> None:
    lines = [jsonlib.dumps({"job_id": name} | _wall(wall)) for name, wall in found.jobs.items()]
    (out / "jobs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    typer.echo(f"wrote {out / 'jobs.jsonl'}", err=True)


def _read(source: str, *, epoch: int | None, is_whole: bool) -> Recording | JournalTail:
    """Return a journal: whole for a prediction, else read as it is replayed."""
    from plexsvc.scheduler.driver.journal import follow, read
    from plexsvc.store.reader import read_journal

    rows = read_journal(source, epoch=epoch)
    return read(rows.rows) if is_whole else follow(rows)


def _show(verdict: ReplayResult, recorded: Recording | JournalTail) -> None:
    begins = f" from the snapshot behind row {verdict.begins} on" if verdict.begins else ""
    typer.echo(f"epoch {recorded.configured.epoch}: {verdict.events} events replayed{begins}")
    if verdict.difference is not None:
        _show_difference(verdict.difference, recorded)
        return
    untold = verdict.events - verdict.compared
    beside = f"; of the last {untold} the journal does not say" if untold else ""
    typer.echo(f"identical: {verdict.actions} actions of {verdict.compared} events{beside}")
    typer.echo(f"chain     {verdict.chain}")


def _show_difference(found: Difference, recorded: Recording | JournalTail) -> None:
    typer.echo(f"different from row {found.idx} on: {found.why}")
    if not recorded.configured.is_this_build:
        typer.echo("another build of the scheduler wrote it, which may have decided otherwise")
    typer.echo(f"event     {found.kind} {found.event}")
    for line in found.replayed or ("nothing",):
        typer.echo(f"replayed  {line}")
