"""`plexctl report`, `plexctl tenant` and `plexctl cost`: what tenants and jobs have and use."""

from __future__ import annotations

from typing import Annotated

import typer

from plexsvc.cli.app import At, duration_us


def report(at: At) -> None:
    """Show each tenant's device time and waits, by whom, and each job's slowdown.

    Operators see every tenant by name; others see their own jobs, and the rest as one.
    """
    from plexsvc.show.report import report_view

    reply = at.ask("GetReport")
    at.show(reply, report_view(reply))


def tenant(at: At) -> None:
    """Show each tenant's weight, the part of the cluster it has now, and what it waits for.

    Tenants that wait get devices in turn, by what each has had for its weight
    (`scheduler.tenant_weights`). Operators see every tenant; others see themselves.
    """
    from plexsvc.show.report import tenants_view

    reply = at.ask("GetReport")
    at.show(reply, tenants_view(reply))


def cost(
    at: At,
    tenant: Annotated[str, typer.Option(help="Of this tenant's jobs alone.")] = "",
    job: Annotated[str, typer.Option(metavar="ID", help="Of this job alone.")] = "",
    since: Annotated[
        str,
        typer.Option(help="Since so long ago (12h, 30d), or a day (2026-01-31, UTC)."),
    ] = "",
    operations: Annotated[
        bool, typer.Option("--operations", help="By operation; with --job, without --since.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, in microseconds.")] = False,
) -> None:
    """Show what each job has used, by kind of operation, in whole hours.

    Operators see every tenant's jobs; others see their own. Jobs that ended stay for
    `scheduler.history_days`.

    With `--operations` a job's newest operations have a line for each account: their own kind's,
    and `switch_in` for bringing the job's state in. Lines without one are what is left.
    """
    from plexsvc.show.report import cost_csv, cost_view

    reply = at.ask(
        "GetCost", owner=tenant, job_id=job, since_us=_since_us(since), by_operation=operations
    )
    at.show(reply, cost_csv(reply) if csv else cost_view(reply))


def _since_us(text: str) -> int:
    """Return the time that `12h` ago or a day began, 0 for none."""
    import time
    from datetime import UTC, datetime

    from plexsvc.errors import bad_request

    if not text:
        return 0
    now_us = time.time_ns() // 1000
    wrong = f"--since {text!r} is neither a day nor a time that has passed"
    try:
        began = datetime.fromisoformat(text)
    except ValueError:
        ago_us = duration_us(wrong, text, "without it all that is known is shown")
        return max(0, now_us - ago_us)
    if began.tzinfo is None:  # a time with an offset says itself which it is
        began = began.replace(tzinfo=UTC)
    since_us = round(began.timestamp() * 1e6)
    if since_us > now_us:
        raise bad_request(f"{wrong}: it is yet to come")
    return max(0, since_us)  # 1970 comes after everything that is older
