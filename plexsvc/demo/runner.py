"""Acts of the demo in order: model, warm-up, each job alone, both at once, verdict, files."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console

from plexclient.wire.v1 import service_pb2
from plexsvc import perfetto
from plexsvc.demo import plots, serving, spot
from plexsvc.demo.acts import Acts
from plexsvc.demo.model import device_bytes_for_one
from plexsvc.demo.plan import plan_figures
from plexsvc.demo.pool import PoolPoint, pool_figures
from plexsvc.demo.presets import Preset, find_preset, wait_ms_for
from plexsvc.demo.processors import cores, tree_seconds
from plexsvc.demo.report import Cap, Check, Run, Summary, cap, checks, summarise, union
from plexsvc.demo.show import Show, pool_line, verdict
from plexsvc.demo.spans import Span, covered_s, training, within
from plexsvc.demo.stage import Stage, open_stage
from plexsvc.demo.trace import trace_events
from plexsvc.show.pack_png import draw_pack

ROLLOUT_BYTES: Final = 1 << 30
_OWN: Final = ("state", *spot.STATES, serving.STATE, "models", "records", "logs")
"""Folders that an earlier demo left in the output directory and this one replaces."""
FILES: Final = (
    "summary.json",
    "checks.json",
    "rewards.png",
    "timeline.png",
    "plan.png",
    "workers.png",
    spot.PICTURE,
    serving.PICTURE,
    "trace.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """The jobs one after the other, and the processor time they took."""

    runs: list[Run]
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What the acts gave."""

    alone: _Alone
    shared: list[Run]
    spans: list[Span]
    job_names: dict[str, str]
    plan: service_pb2.PackReply | None
    pool: list[PoolPoint]


def run_demo(preset_name: str, *, out_dir: Path, as_json: bool) -> int:
    """Run the demo; print its verdict; return 0 when every check passed, else 1.

    Raises:
        PlexError: when the preset is unknown, or the cluster or a job fails.
    """
    preset = find_preset(preset_name)
    out_dir = out_dir.absolute()
    _clear(out_dir)
    talk = Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    if preset.spot_devices:
        found = spot.run(preset, out_dir=out_dir, talk=talk, as_json=as_json)
    elif preset.requests_per_s:
        found = serving.run(preset, out_dir=out_dir, talk=talk, as_json=as_json)
    else:
        found = _share(preset, out_dir=out_dir, talk=talk, as_json=as_json)
    written = [name for name in FILES if (out_dir / name).exists()]
    talk.print(f"files in {out_dir}: {', '.join(written)}, records, logs", highlight=False)
    failed = [check for check in found if not check.passed]
    for check in failed:
        talk.print(f"the demo failed its check of {check.name}: {check.found}", style="red")
    return 1 if failed else 0


def _share(preset: Preset, *, out_dir: Path, talk: Console, as_json: bool) -> list[Check]:
    """Run each job alone and both on one device; return what was checked."""
    with Show(talk) as show:
        outcome = _Demo(preset, out_dir=out_dir, show=show).run()
    planned = plan_figures(outcome.plan)
    summary = summarise(outcome.alone.runs, outcome.shared, spans=outcome.spans, plan=planned)
    found = checks(summary, preset=preset, alone=outcome.alone.runs, shared=outcome.shared)
    limit = _cap(outcome)
    window = union([run.window for run in outcome.shared])
    pool = pool_figures(outcome.pool, window=window)
    _write(out_dir, outcome, summary=summary)
    _write_json(
        out_dir / "checks.json",
        {
            "preset": asdict(preset),
            "cap": asdict(limit),
            "plan": asdict(planned),
            "pool": asdict(pool),
            "checks": [asdict(check) for check in found],
        },
    )
    if as_json:
        print(json.dumps(summary.to_json()))
    else:
        Console().print(verdict(summary, checks=found, cap=limit))
        if outcome.pool:
            Console().print(pool_line(pool), highlight=False)
    return found


class _Demo:
    """One run of a preset."""

    def __init__(self, preset: Preset, *, out_dir: Path, show: Show) -> None:
        self._preset = preset
        self._out_dir = out_dir
        self._show = show
        self._acts = Acts(preset, out_dir=out_dir, show=show)

    def run(self) -> _Outcome:
        """Play all acts."""
        num_parameters = self._acts.num_parameters
        device_bytes = device_bytes_for_one(num_parameters)
        self._show.act(
            f"starting a cluster; its training device has {device_bytes / 2**20:.1f} MiB, "
            f"the state of one job of {num_parameters / 1e6:.1f} M parameters"
        )
        with open_stage(
            self._out_dir / "state",
            device_bytes=device_bytes,
            rollout_bytes=ROLLOUT_BYTES,
            notes_pool=self._preset.uses_rewards,
        ) as stage:
            self._acts.warm_up(stage)
            waits_ms = self._calibrate(stage) if self._preset.wait_share else {}
            alone = self._alone(stage, waits_ms=waits_ms)
            self._show.act("both jobs share the device")
            shared = self._acts.play(stage, self._preset.tasks, label="shared", waits_ms=waits_ms)
            return _Outcome(
                alone=alone,
                shared=shared,
                spans=stage.spans(),
                job_names=dict(stage.job_names),
                plan=stage.plan,
                pool=stage.pool,
            )

    def _calibrate(self, stage: Stage) -> dict[str, float]:
        """Return how many ms each task's tool must take to be the preset's share of its cycle.

        The cycles are timed with a tool too: work is slower after a wait, when caches are cold.
        """
        self._show.act("timing a cycle of each job")
        preset = self._preset
        some_ms = dict.fromkeys(preset.tasks, preset.calibration_wait_ms)
        waits_ms = {}
        for task in preset.tasks:
            (run,) = self._acts.play(
                stage,
                [task],
                label="calibration",
                waits_ms=some_ms,
                steps=preset.calibration_steps,
            )
            work_s = fmean(step.wall_s - step.wait_s for step in run.record.steps)
            waits_ms[task] = wait_ms_for(work_s, wait_share=preset.wait_share)
        return waits_ms

    def _alone(self, stage: Stage, *, waits_ms: Mapping[str, float]) -> _Alone:
        runs: list[Run] = []
        cpu_before_s = tree_seconds(stage.pid)
        for task in self._preset.tasks:
            self._show.act(f"{task} alone")
            runs += self._acts.play(stage, [task], label="alone", waits_ms=waits_ms)
        service_s = tree_seconds(stage.pid) - cpu_before_s
        return _Alone(runs=runs, cpu_s=service_s + sum(run.record.cpu_s for run in runs))


def _clear(out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in _OWN:
        shutil.rmtree(out_dir / name, ignore_errors=True)
    for name in FILES:
        (out_dir / name).unlink(missing_ok=True)


def _cap(outcome: _Outcome) -> Cap:
    runs = outcome.alone.runs
    busy = [covered_s(training(within(outcome.spans, run.window))) for run in runs]
    return cap(
        [run.window.seconds for run in runs],
        cpu_s=outcome.alone.cpu_s,
        device_s=sum(busy),
        num_cores=cores(),
    )


def _write(out_dir: Path, outcome: _Outcome, *, summary: Summary) -> None:
    names = {run.job_id: run.name for run in outcome.shared}
    window = union([run.window for run in outcome.shared])
    _write_json(out_dir / "summary.json", summary.to_json())
    perfetto.write(out_dir / "trace.json", trace_events(outcome.spans, names=outcome.job_names))
    plots.plot_rewards(out_dir / "rewards.png", alone=outcome.alone.runs, shared=outcome.shared)
    if outcome.pool:
        plots.plot_workers(out_dir / "workers.png", points=outcome.pool, window=window)
    if outcome.plan is not None:
        draw_pack(out_dir / "plan.png", outcome.plan)
    plots.plot_timeline(out_dir / "timeline.png", spans=outcome.spans, window=window, names=names)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
