"""`plexctl reward`: programs that score samples, and the batches that they score."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plexsvc.cli.app import FAILED, At, Commands, command, live

if TYPE_CHECKING:
    from plexclient.wire.v1 import reward_pb2

_REFRESH_S: Final = 1.0

reward_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List programs, try one, and see what is being scored.",
    epilog="Example: plexctl reward test exact 'Paris' --reference '\"Paris\"'",
)


@command(reward_app, "list", example="plexctl reward list")
def reward_list(at: At) -> None:
    """Show every program, its stages with their limits, and what isolates untrusted code."""
    from plexsvc.show.rewards import programs_view

    reply = _ask(at)
    at.show(reply, programs_view(reply))


@command(reward_app, "top", example="plexctl reward top")
def reward_top(at: At) -> None:
    """Keep queue, workers and batches on the screen until Ctrl-C; in a pipe they are shown once.

    Operators see every tenant's batches, others their own.
    """
    from plexsvc.show.rewards import batches_view

    if at.json:
        reply = _ask(at)
        at.show(reply, "")
        return
    live((batches_view(_ask(at)) for _ in count()), every_s=_REFRESH_S)


@command(reward_app, "explain", example="plexctl reward explain 1f0c9a3b")
def reward_explain(
    at: At, batch: Annotated[str, typer.Argument(help="The batch's id, or how it begins.")]
) -> None:
    """Say which sample a batch waits for, and why."""
    from plexsvc.show.rewards import explained

    reply = _ask(at)
    found = [one for one in reply.batches if one.batch_id.hex().startswith(batch)]
    if len(found) != 1:
        what = f"{len(found)} batches begin with it" if found else "no such batch is being scored"
        typer.echo(f"{batch}: {what}; `plexctl reward top` lists those that are", err=True)
        raise typer.Exit(FAILED)
    at.show(found[0], explained(found[0]))


@command(reward_app, "test", example="plexctl reward test numeric 'it is 7' --reference 7")
def reward_test(
    at: At,
    program: Annotated[str, typer.Argument(help="The program's name.")],
    text: Annotated[str, typer.Argument(help="What a model might have written.")],
    reference: Annotated[str, typer.Option(help="Its reference, as JSON.")] = "null",
    settings: Annotated[str, typer.Option(help="Settings of the program, a JSON object.")] = "{}",
) -> None:
    """Score one text, as a job would have it scored; exit 1 when there is no score."""
    import json
    from dataclasses import asdict

    import plexclient as plex
    from plexclient.errors import ErrorCode
    from plexsvc.cli.app import print_json

    try:
        references, keywords = [json.loads(reference)], dict(json.loads(settings))
    except ValueError as error:
        raise plex.PlexError(ErrorCode.BAD_REQUEST, f"not JSON: {error}") from error
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


def _ask(at: At) -> reward_pb2.RewardsReply:
    from plexclient.wire.v1 import reward_pb2

    with at.router() as router:
        return router.GetRewards(reward_pb2.GetRewardsRequest())
