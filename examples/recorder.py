"""What a controller writes down: one JSON object a line, in a file and in its job's log."""

from __future__ import annotations

import json
from pathlib import Path


class Recorder:
    """Appends facts to a JSON-lines file, which starts empty, and prints them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def write(self, kind: str, **facts: float | str | dict[str, float]) -> None:
        """Append one line."""
        line = json.dumps({"kind": kind, **facts})
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")
