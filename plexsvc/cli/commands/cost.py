"""`plexctl cost`: what jobs have used."""

from __future__ import annotations

from typing import Annotated

import typer

from plexsvc.cli.app import At, duration_us


def cost(
    at: At,
    tenant: Annotated[str, typer.Option(help="Of this tenant's jobs alone.")] = "",
    job: Annotated[str, typer.Option(metavar="ID", help="Of this job alone.")] = "",
    since: Annotated[
        str,
        typer.Option(help="Since so long ago (12h, 30d), or a day (2026-01-31, UTC)."),
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, in microseconds.")] = False,
) -> None:
    """Show what each job has used, by kind of operation, in whole hours.

    Operators see every tenant's jobs; others see their own. Jobs that ended stay for
    `scheduler.history_days`.
    """
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.cost import cost_csv, cost_view

    request = service_pb2.CostRequest(owner=tenant, job_id=job, since_us=_since_us(since))
    with at.router() as router:
        reply = router.GetCost(request)
    at.show(reply, cost_csv(reply) if csv else cost_view(reply))


def _since_us(text: str) -> int:
    """Return the time that `12h` ago or a day began, 0 for none."""
    import time
    from datetime import UTC, datetime

    if not text:
        return 0
    try:
        return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)
    except ValueError:
        wrong = f"--since {text!r} is neither a day nor a time that has passed"
        ago_us = duration_us(wrong, text, "without it all that is known is shown")
        return time.time_ns() // 1000 - ago_us
