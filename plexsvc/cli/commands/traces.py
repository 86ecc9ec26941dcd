"""`plexctl traces`: give the spans of operations to a collector of OpenTelemetry."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from plexsvc.errors import bad_request

_LOOK_S: Final = 2.0
"""Pause between two looks for new rows of a journal."""


def traces(
    journal: Annotated[
        str, typer.Argument(help="The cluster's database: a SQLite file, or an SQLAlchemy URL.")
    ],
    to: Annotated[
        str,
        typer.Option(help="OTLP/HTTP receiver: http://HOST:4318. By default, lines are printed."),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="File that gets the lines instead.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Send what ends from now on, until Ctrl-C.")
    ] = False,
) -> None:
    """Send a span for each operation (inputs, queue, switch, execute), made from the journal.

    An operation that was submitted under a span of OpenTelemetry continues its trace.
    """
    if to and out is not None:
        raise bad_request("--to and --out were both given; give one")
    try:
        from plexsvc.traces import export
    except ImportError as error:
        raise bad_request(
            f"{error.name} is not installed; install the extra: pip install plexsvc[traces]"
        ) from error
    with ExitStack() as held:
        if to:
            sink: export.Sink = export.Collector(to)
        else:
            file = sys.stdout if out is None else held.enter_context(out.open("w"))
            sink = export.Lines(file)
        if follow:
            with suppress(KeyboardInterrupt):
                now_us = time.time_ns() // 1000
                export.export(journal, sink, pause=lambda: time.sleep(_LOOK_S), since_us=now_us)
        else:
            typer.echo(f"{export.export(journal, sink)} spans", err=True)
