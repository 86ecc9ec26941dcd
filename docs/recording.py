"""Makes `docs/recording.svg`: a terminal in which the README's commands run, from what they print.

    python docs/recording.py docs/recording.svg    # in a fresh directory's cluster, half a minute

Lines appear in the rhythm in which they came, in `SHOWN_S` altogether.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

COMMANDS = (
    "plexctl model new tiny-qwen3 models/tiny",
    "plexctl up --detach --root .",
    "plexctl submit --name recite examples/recite.py models/tiny 400",
    "plexctl submit --attach --name digits examples/first_loop.py models/tiny 14",
    "plexctl report",
    "plexctl down",
)
SHOWN_S = 14.0
STYLE = (
    "text{font:13px monospace;white-space:pre;animation-name:a;animation-timing-function:step-end}"
    "@keyframes a{from{visibility:hidden}}"
)
ASKED, SAID = "#7fd1b9", "#dddddd"


def svg(lines: Sequence[tuple[float, str]]) -> str:
    """Return a picture of lines that each appear after their seconds; commands begin with `$`."""
    width = max(len(text) for _, text in lines) * 8 + 24
    height = 18 * len(lines) + 24
    pace = SHOWN_S / max(1.0, lines[-1][0])
    shown = [
        f'<text x="12" y="{24 + 18 * row}" fill="{ASKED if text.startswith("$") else SAID}" '
        f'style="animation-duration:{at_s * pace:.1f}s">{escape(text)}</text>'
        for row, (at_s, text) in enumerate(lines)
        if text
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" rx="8" fill="#1b1f24"/>'
        f"{''.join(shown)}</svg>\n"
    )


def record(place: Path) -> list[tuple[float, str]]:
    """Run the commands below a directory, and return when they printed what."""
    (place / "loops").mkdir()
    (place / "loops" / "examples").symlink_to(Path(__file__).parents[1] / "examples")
    environment = os.environ | {"HOME": str(place), "COLUMNS": "132"}  # noqa: TID251 - a user's
    began, lines = time.monotonic(), []
    for command in COMMANDS:
        lines.append((time.monotonic() - began, f"$ {command}"))
        with subprocess.Popen(
            command.split(),
            cwd=place / "loops",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                text = line.rstrip().replace(str(place), "~")
                lines.append((time.monotonic() - began, text))
    return lines


def main(to: str) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory(prefix="plex-", dir="/var/tmp") as place:
        Path(to).write_text(svg(record(Path(place))))


if __name__ == "__main__":
    main(*sys.argv[1:])
