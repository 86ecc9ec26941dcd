"""`plexctl doctor`: whether this machine can run the service, or the nodes of one fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from plexsvc.cli.app import FAILED, console, print_json, state_dir_of

_COLORS: Final = {"ok": "green", "limited": "yellow", "failed": "bold red"}


def doctor(state_dir: Path | None, *, cluster: bool, json: bool) -> int:
    """Print what was found; return the exit status: 1 when something failed."""
    from dataclasses import asdict

    from rich.text import Text

    from plexsvc.cluster.doctor import Grade, examine
    from plexsvc.cluster.places import find_cluster
    from plexsvc.cluster.rounds import examine_nodes
    from plexsvc.show.status import table_of

    place = state_dir_of(state_dir)
    if cluster:
        card = find_cluster(place, address=None, token=None)
        findings = list(examine_nodes(place, card))
    else:
        findings = list(examine(place))
    if json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        table = table_of("", "", "found", "what to do")
        for finding in findings:
            grade = Text(finding.grade, style=_COLORS[finding.grade])
            table.add_row(finding.name, grade, finding.found, finding.todo)
        console().print(table)
    is_failed = any(finding.grade is Grade.FAILED for finding in findings)
    if is_failed:
        what = "nodes do not fit the service" if cluster else "the service cannot run here"
        typer.echo(f"{what}: see what failed", err=True)
    return FAILED if is_failed else 0
