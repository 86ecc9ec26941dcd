"""Picture of a demo: rewards of the jobs, who had the devices when, and what the demo counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plexsvc.demo.report import DemoOutcome, union
from plexsvc.demo.spans import DeviceSpan, Window, within

COLORS: Final = ("tab:blue", "tab:orange", "tab:green", "tab:red")
MOVE_COLOR: Final = "black"
SMOOTHING: Final = 10
CLOSER_US: Final = 3_000_000


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and up to `SMOOTHING - 1` before it.

    >>> smoothed([0.0, 1.0, 2.0])
    [0.0, 0.5, 1.0]
    """
    heads = [values[max(0, i + 1 - SMOOTHING) : i + 1] for i in range(len(values))]
    return [sum(head) / len(head) for head in heads]


def draw(path: Path, outcome: DemoOutcome) -> None:
    """Write the picture of a demo."""
    figure = Figure(figsize=(11, 12), layout="constrained")
    rewards, whole, part, *own = figure.subplots(4 if outcome.curves else 3)
    for color, run, without in zip(COLORS, outcome.runs, outcome.without, strict=False):
        values = run.record.rewards
        before = smoothed(without.record.rewards)
        rewards.plot(before, color=color, linewidth=6, alpha=0.25, label=f"{run.task}, without")
        rewards.plot(values, ".", color=color, alpha=0.3)
        rewards.plot(smoothed(values), color=color, label=f"{run.task}, with")
    rewards.set(xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1), title="Rewards")
    rewards.legend()
    window = union(outcome.runs)
    middle_us = (window.start_us + window.end_us) // 2
    closer = Window(start_us=middle_us, end_us=min(window.end_us, middle_us + CLOSER_US))
    colors = dict(zip([run.job_id for run in outcome.runs], COLORS, strict=False))
    for axes, shown, title in (
        (whole, window, "Devices while the jobs run"),
        (part, closer, "Three seconds of it"),
    ):
        _draw_devices(axes, spans=outcome.spans, window=shown, colors=colors)
        axes.set_title(title)
    jobs = [(color, run.task) for color, run in zip(COLORS, outcome.runs, strict=False)]
    legend = [Patch(color=c, label=name) for c, name in [*jobs, (MOVE_COLOR, "load, offload")]]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend))
    for axes in own:
        for name, points in outcome.curves.items():
            seconds = [(at_us - window.start_us) / 1e6 for at_us, _ in points]
            axes.step(seconds, [value for _, value in points], where="post", label=name)
        axes.set(xlabel="seconds", xlim=(0, window.seconds), yscale="symlog")
        axes.legend()
    figure.savefig(path, dpi=100)


def _draw_devices(
    axes: Axes, *, spans: Sequence[DeviceSpan], window: Window, colors: Mapping[str, str]
) -> None:
    shown = within(spans, window)
    devices = sorted({(span.device, span.device_kind) for span in shown}, reverse=True)
    for row, (device, _) in enumerate(devices):
        mine = [span for span in shown if span.device == device]
        bars = [
            ((s.start_us - window.start_us) / 1e6, max(s.end_us - s.start_us, 1) / 1e6)
            for s in mine
        ]
        shades = [MOVE_COLOR if s.is_move else colors.get(s.job_id, "lightgray") for s in mine]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=shades)
    labels = [f"{kind} {device.rpartition(':')[2]}" for device, kind in devices]
    axes.set_yticks(range(len(devices)), labels)
    axes.set(xlabel="seconds", xlim=(0, window.seconds))
