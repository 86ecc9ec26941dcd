"""Demo of spot instances: two jobs learn without them, then while a trace brings and kills them.

The trace (`spot_trace.csv`) is cut from Bamboo's p3 trace (AWS, 2021; MIT licence, (c) 2022
UCLASystem, github.com/uclasystem/bamboo, `traces/p3-trace.csv` at 8080929): from its second hour
and 40 minutes on, the nodes that lived 8 minutes or longer, as many as three devices can play. It
is played `SCALE` times as fast and without notice, so that whatever goes is killed at whatever
token it is at. Both runs have the same seeds. An engine takes few samples at a time, so that
generating takes a share of a step as it does for larger models.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from plexsvc.demo import plots
from plexsvc.demo.acts import Acts
from plexsvc.demo.model import device_bytes_for_one
from plexsvc.demo.presets import Preset
from plexsvc.demo.report import Check
from plexsvc.demo.show import Show, marks
from plexsvc.demo.spot_report import Act, SpotSummary, checks, spot_point, summarise
from plexsvc.demo.stage import open_stage
from plexsvc.rollout.config import SpotConfig

TRACE: Final = Path(__file__).with_name("spot_trace.csv")
SCALE: Final = 60.0
MAX_NUM_SEQS: Final = 16
"""Samples of an engine's step."""
ROLLOUT_BYTES: Final = 1 << 30
STATES: Final = ("state-without", "state-spot")
"""Folders of the two clusters."""
PICTURE: Final = "spot.png"


def run(preset: Preset, *, out_dir: Path, talk: Console, as_json: bool) -> list[Check]:
    """Play both acts, write summary and picture, print the verdict; return what was checked.

    Raises:
        PlexError: when a cluster or a job fails.
    """
    with Show(talk) as show:
        acts = Acts(preset, out_dir=out_dir, show=show)
        without = _act(preset, acts, out_dir=out_dir, show=show, spot=0)
        spot = _act(preset, acts, out_dir=out_dir, show=show, spot=preset.spot_devices)
    summary = summarise(without, spot, preset=preset)
    found = checks(summary)
    plots.plot_spot(out_dir / PICTURE, without=without, spot=spot)
    _write_json(out_dir / "summary.json", asdict(summary))
    told = {"preset": asdict(preset), "checks": [asdict(check) for check in found]}
    _write_json(out_dir / "checks.json", told)
    if as_json:
        print(json.dumps(asdict(summary)))
    else:
        _print(summary, found)
    return found


def _act(preset: Preset, acts: Acts, *, out_dir: Path, show: Show, spot: int) -> Act:
    """Run both jobs in a cluster of their own: its trace begins with it."""
    with open_stage(
        out_dir / STATES[spot > 0],
        device_bytes=device_bytes_for_one(acts.num_parameters),
        rollout_bytes=ROLLOUT_BYTES,
        max_num_seqs=MAX_NUM_SEQS,
        spot_devices=preset.spot_devices,
        spot=SpotConfig(trace=str(TRACE), scale=SCALE),
    ) as stage:
        if not spot:
            acts.warm_up(stage)
        show.act(f"both jobs with up to {spot} spot instances" if spot else "both jobs without")
        runs = acts.play(stage, preset.tasks, label="spot" if spot else "without", spot=spot)
        points = [spot_point(at_us, reply) for at_us, reply in stage.instances]
        return Act(runs=runs, spans=stage.spans(), points=points)


def _print(summary: SpotSummary, found: list[Check]) -> None:
    table = Table(title="GRPO with spot instances that are killed", title_justify="left")
    table.add_column("")
    for line in summary.jobs:
        table.add_column(line.job.name, justify="right")
    for label, values in (
        ("steps", [str(one.job.steps) for one in summary.jobs]),
        ("mean reward, first 10 steps", [f"{one.job.reward_first10:.3f}" for one in summary.jobs]),
        ("mean reward, last 10 steps", [f"{one.job.reward_last10:.3f}" for one in summary.jobs]),
        ("held-out accuracy, before", [f"{one.job.heldout_before:.3f}" for one in summary.jobs]),
        ("held-out accuracy, after", [f"{one.job.heldout_after:.3f}" for one in summary.jobs]),
        ("tokens/s without", [f"{one.tokens_per_s_without:.0f}" for one in summary.jobs]),
        ("tokens/s with spot", [f"{one.tokens_per_s_spot:.0f}" for one in summary.jobs]),
        ("losses of an instance", [str(one.instances_lost) for one in summary.jobs]),
    ):
        table.add_row(label, *values)
    console = Console()
    console.print(table)
    console.print(
        f"without spot instances {summary.seconds_without:.1f} s, with {summary.mean_serving:.1f} "
        f"in the mean {summary.seconds_spot:.1f} s: all share these cores, so that this says "
        "nothing of how much sooner more devices make it",
        highlight=False,
    )
    for mark in marks(found):
        console.print(mark)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
