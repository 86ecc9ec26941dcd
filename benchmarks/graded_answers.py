"""Graders of answers against labels that others gave: how often `numeric` and `math` agree.

`--solutions` is a CSV with `prompt_idx`, `is_correct` and `solution`, `--tasks` one with `idx` and
`final`, such as GSM8K's own model solutions and test set. One JSON line a program.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

from plexsvc.reward.programs import answers
from plexsvc.reward.programs.base import Scored, StageRun
from plexsvc.reward.sandbox.base import Sandbox


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--solutions", type=Path, required=True)
    options.add_argument("--tasks", type=Path, required=True)
    asked = options.parse_args()
    finals = {row["idx"]: row["final"].replace(",", "") for row in rows(asked.tasks)}
    solutions = rows(asked.solutions)
    for name in ("numeric", "math"):
        found: Counter[str] = Counter()
        for row in solutions:
            is_right = row["is_correct"] == "1"
            is_paid = is_right_by(name, row["solution"], finals[row["prompt_idx"]])
            found["solutions"] += 1
            found["right"] += is_right
            found["paid and wrong"] += is_paid and not is_right
            found["right and not paid"] += is_right and not is_paid
        print(json.dumps({"program": name, **found}))


def is_right_by(name: str, text: str, reference: str) -> bool:
    """Return whether a program gives a text its point; neither of them runs anything."""
    (program,) = (one for one in answers.PROGRAMS if one.name == name)
    (stage,) = program.stages
    work = StageRun(text=text, reference=reference, sandbox=cast("Sandbox", None))
    found = stage.run(work)
    return isinstance(found, Scored) and found.score == 1


def rows(path: Path) -> list[dict[str, str]]:
    opened: Any = gzip.open if path.suffix == ".gz" else Path.open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
