"""Run of a demo: its acts, the verdict, the picture and the files."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from plexsvc.demo import plots, share, spot
from plexsvc.demo.acts import Acts
from plexsvc.demo.presets import find_preset
from plexsvc.demo.report import job_checks, job_figures, verdict
from plexsvc.demo.show import Show

PLAYS: Final = {
    "sharing": ("GRPO on one device, without and with another job", share.play),
    "spot": ("GRPO without and with spot instances that are killed", spot.play),
}
FILES: Final = ("summary.json", "demo.png")
WIDTH: Final = 120
"""Columns of what is shown where there is no terminal."""


def run_demo(preset_name: str, *, out_dir: Path, as_json: bool) -> int:
    """Run the demo; print its verdict; return 0 when every check passed, else 1.

    Raises:
        PlexError: when the preset is unknown, or the cluster or a job fails.
    """
    preset = find_preset(preset_name)
    out_dir = out_dir.absolute()
    out_dir.mkdir(parents=True, exist_ok=True)
    for folder in (*out_dir.glob("state*"), *(out_dir / n for n in ("models", "records", "logs"))):
        shutil.rmtree(folder, ignore_errors=True)
    for name in FILES:
        (out_dir / name).unlink(missing_ok=True)
    talk = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    title, play = PLAYS[preset.shows]
    with Show(talk) as show:
        outcome = play(Acts(preset, out_dir=out_dir, show=show))
    jobs = [
        job_figures(without, run, spans=outcome.spans)
        for without, run in zip(outcome.without, outcome.runs, strict=True)
    ]
    samples = preset.steps * preset.prompts * preset.group
    checks = [check for job in jobs for check in job_checks(job, samples=samples)]
    checks += outcome.checks
    summary = {
        "preset": asdict(preset),
        "jobs": jobs,
        "figures": outcome.figures,
        "checks": [asdict(check) for check in checks],
    }
    (out_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plots.draw(out_dir / "demo.png", outcome)
    if as_json:
        print(json.dumps(summary))
    else:
        Console().print(verdict(title, jobs, lines=outcome.lines, checks=checks))
    talk.print(f"files in {out_dir}: {', '.join(FILES)}, records, logs", highlight=False)
    failed = [check for check in checks if not check.passed]
    for check in failed:
        talk.print(f"the demo failed its check of {check.name}: {check.found}", style="red")
    return 1 if failed else 0
