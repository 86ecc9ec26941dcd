"""`plexctl reward`: programs that score samples, and the batches that they score."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated, Final

import typer

from plexsvc.cli.app import FAILED, At, Commands, command, live
from plexsvc.cli.commands import stage_specs

_REFRESH_S: Final = 1.0

reward_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List, add and remove programs, try one, and see what is being scored.",
    epilog="Example: plexctl reward test exact 'Paris' --reference '\"Paris\"'",
)


@command(reward_app, "list", example="plexctl reward list")
def reward_list(at: At) -> None:
    """Show every program, its stages with their limits, and what isolates untrusted code."""
    from plexsvc.show.rewards import programs_view

    reply = at.ask("GetRewards")
    at.show(reply, programs_view(reply))


@command(reward_app, "top", example="plexctl reward top")
def reward_top(at: At) -> None:
    """Keep queue, workers and batches on the screen until Ctrl-C; in a pipe they are shown once.

    Operators see every tenant's batches, others their own.
    """
    from plexsvc.show.rewards import batches_view

    if at.json:
        reply = at.ask("GetRewards")
        at.show(reply, "")
        return
    live((batches_view(at.ask("GetRewards")) for _ in count()), every_s=_REFRESH_S)


@command(reward_app, "explain", example="plexctl reward explain 1f0c9a3b")
def reward_explain(
    at: At, batch: Annotated[str, typer.Argument(help="The batch's id, or how it begins.")]
) -> None:
    """Say which sample a batch waits for, and why."""
    from plexsvc.show.rewards import explained

    reply = at.ask("GetRewards")
    found = [one for one in reply.batches if one.batch_id.hex().startswith(batch)]
    if len(found) != 1:
        what = f"{len(found)} batches begin with it" if found else "no such batch is being scored"
        typer.echo(f"{batch}: {what}; `plexctl reward top` lists those that are", err=True)
        raise typer.Exit(FAILED)
    at.show(found[0], explained(found[0]))


@command(
    reward_app,
    "add",
    example="plexctl reward add fast --stage compile:cpu=2,mem=2GiB,timeout=120s:./compile.sh "
    "--stage run:cpu=1,timeout=60s:./run.py",
)
def reward_add(
    at: At,
    name: Annotated[str, typer.Argument(help="The program's name, for `job.score`.")],
    python: Annotated[
        Path | None, typer.Argument(help="A Python file with `score(sample)`, instead of stages.")
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option(help="A stage, as in the example below; again for the next.")
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file, or a directory for what is in it; may be given again. Without any: the "
            "files that the commands name."
        ),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Of the Python file.")] = "60s",
    timeout_score: Annotated[float, typer.Option(help="For samples that exceed a limit.")] = -1.0,
) -> None:
    """Register a reward program of your own: a Python file, or commands in stages.

    A Python file has `score(sample)`; it returns a number, or a dict with `score` and `detail`.
    `sample.text` is what the model wrote, `sample.reference` its reference, `sample.settings` the
    settings that the job gave.

    A stage is NAME, what it holds and its limits, and its COMMAND: a resource (cpu) with a count,
    `timeout`, `mem` (512MiB), `untrusted`.

    A command finds the program's files in its directory, and the sample as JSON in sample.json and
    on stdin: {"text": "...", "reference": ..., "settings": {}}. The last line that it prints, such
    as {"score": 0.5, "detail": "why"}, is the verdict, and ends the rest. Without one, what it left
    in output/ is the next stage's input/. Any other exit code than 0 is a failure of the program:
    the stage runs again, three times in all. A stage that runs what the model wrote should be
    `untrusted`: what it prints is no verdict, but the next stage finds it in input/stdout,
    input/stderr and input/exit_code.

    The same name again makes a new version; batches under way keep theirs.
    """
    import plexclient as plex
    from plexclient import programs
    from plexclient.errors import ErrorCode

    if (python is None) == (not stage):
        raise plex.PlexError(ErrorCode.BAD_REQUEST, "give either a Python file or stages")
    try:
        timeout_s = stage_specs.seconds(timeout)
    except ValueError as error:
        raise plex.PlexError(ErrorCode.BAD_REQUEST, f"--timeout: {error}") from error
    request = programs.to_wire(
        name,
        python or [stage_specs.parse(one) for one in stage or ()],
        files=file,
        timeout_s=timeout_s,
        timeout_score=timeout_score,
    )
    with at.router() as router:
        kept = router.AddProgram(request)
    at.show(kept, f"program {kept.name} is version {kept.version}")


@command(reward_app, "remove", example="plexctl reward remove fast")
def reward_remove(at: At, name: Annotated[str, typer.Argument(help="The program's name.")]) -> None:
    """Remove a program of your own with all its versions; batches under way keep it."""
    gone = at.ask("RemoveProgram", name=name)
    at.show(gone, f"program {gone.name} is removed; its last version was {gone.version}")


@command(reward_app, "test", example="plexctl reward test numeric 'it is 7' --reference 7")
def reward_test(
    at: At,
    program: Annotated[str, typer.Argument(help="The program's name.")],
    text: Annotated[str | None, typer.Argument(help="What a model might have written.")] = None,
    reference: Annotated[str, typer.Option(help="Its reference, as JSON.")] = "null",
    settings: Annotated[str, typer.Option(help="Settings of the program, a JSON object.")] = "{}",
    sample: Annotated[
        Path | None,
        typer.Option(help="A file with text, reference and settings as JSON, instead of those."),
    ] = None,
) -> None:
    """Score one text, as a job would have it scored; exit 1 when there is no score."""
    import json
    from dataclasses import asdict

    import plexclient as plex
    from plexclient.errors import ErrorCode
    from plexsvc.cli.app import print_json

    try:
        references, keywords = [json.loads(reference)], json.loads(settings)
        if sample is not None:
            given = json.loads(sample.read_text())
            text, references = str(given["text"]), [given.get("reference")]
            keywords = given.get("settings", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise plex.PlexError(ErrorCode.BAD_REQUEST, f"not a sample in JSON: {error!r}") from error
    if not isinstance(keywords, dict):
        raise plex.PlexError(
            ErrorCode.BAD_REQUEST, f"settings are {keywords!r:.40}; give a JSON object"
        )
    if text is None:
        raise plex.PlexError(ErrorCode.BAD_REQUEST, "give a text or --sample")
    card = at.card
    with (
        plex.connect(card.address, token=card.token, ca=card.ca or None) as cluster,
        cluster.job("reward-test") as job,
    ):
        (score,) = job.score(program, [text], references=references, **keywords)
    if at.json:
        print_json(asdict(score))
    else:
        took = f"{score.time_s:.3f} s, {score.queue_s:.3f} s in queues"
        typer.echo(f"{score.verdict} {score.value:g} ({took}) {score.detail}")
        if score.output:
            typer.echo(score.output)
    if score.verdict == "error":
        raise typer.Exit(FAILED)
