"""Plots of a demo: rewards of the jobs, who had the devices when, and spot instances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plexsvc.demo.pool import PoolPoint, zero_queue
from plexsvc.demo.pool import within as within_pool
from plexsvc.demo.report import Run
from plexsvc.demo.serving_report import LATENCIES, ServingAct
from plexsvc.demo.spans import Span, Window, within
from plexsvc.demo.spot_report import Act

COLORS: Final = ("tab:blue", "tab:orange", "tab:green", "tab:red")
MOVE_COLOR: Final = "black"
SMOOTHING: Final = 10


def smoothed(values: Sequence[float], *, width: int = SMOOTHING) -> list[float]:
    """Return the mean of each value and up to `width - 1` before it.

    >>> smoothed([0.0, 1.0, 2.0], width=2)
    [0.0, 0.5, 1.5]
    """
    heads = [values[max(0, i + 1 - width) : i + 1] for i in range(len(values))]
    return [sum(head) / len(head) for head in heads]


def plot_rewards(path: Path, *, alone: Sequence[Run], shared: Sequence[Run]) -> None:
    """Write a picture of each job's mean reward a step, shared and alone."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for color, run, by_itself in zip(COLORS, shared, alone, strict=False):
        rewards = run.record.rewards
        mean_alone = smoothed(by_itself.record.rewards)
        axes.plot(mean_alone, color=color, linewidth=6, alpha=0.25, label=f"{run.task}, alone")
        axes.plot(rewards, ".", color=color, alpha=0.3)
        axes.plot(smoothed(rewards), color=color, label=f"{run.task}, sharing the device")
    axes.set(xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1), title="Rewards")
    axes.legend()
    figure.savefig(path, dpi=120)


def plot_timeline(
    path: Path, *, spans: Sequence[Span], window: Window, names: Mapping[str, str]
) -> None:
    """Write a picture of the devices in the shared window, and of a few seconds from its middle."""
    middle = (window.start_us + window.end_us) // 2
    closer = Window(start_us=middle, end_us=min(window.end_us, middle + 3_000_000))
    figure = Figure(figsize=(11, 5), layout="constrained")
    whole, part = figure.subplots(2)
    _draw(whole, spans=spans, window=window, names=names)
    _draw(part, spans=spans, window=closer, names=names)
    whole.set_title("Devices while both jobs run")
    part.set_title("Three seconds of it")
    handles = [Patch(color=color, label=name) for color, name in _legend(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.savefig(path, dpi=120)


def plot_workers(path: Path, *, points: Sequence[PoolPoint], window: Window) -> None:
    """Write a picture of the reward workers in the window, and of what else would be there."""
    shown = within_pool(points, window)
    seconds = [(point.at_us - window.start_us) / 1e6 for point in shown]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    needed = [sum(point.needed.values()) for point in shown]
    axes.step(seconds, needed, where="post", color="lightgray", label="requests that run or wait")
    planned = [math.nan if point.planned is None else point.planned for point in shown]
    for label, color, width, values in (  # wide below narrow: they often are the same
        ("workers planned, at most", "tab:green", 5, planned),
        ("workers held", "tab:blue", 2.5, [point.held for point in shown]),
        ("workers busy", "tab:orange", 1.5, [point.busy for point in shown]),
    ):
        axes.step(seconds, values, where="post", color=color, linewidth=width, label=label)
    zero = sum(zero_queue(shown).values())
    axes.axhline(zero, color="black", linestyle="--", label="zero-queue pools of each job")
    axes.set(xlabel="seconds", ylabel="workers, requests", title="Reward workers", yscale="symlog")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def plot_spot(path: Path, *, without: Act, spot: Act) -> None:
    """Write a picture of spot instances, tokens a second and rewards, without and with them."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.subplots(3, 2, sharey="row", sharex="col")
    for column, (title, act) in enumerate((("without", without), ("with spot instances", spot))):
        instances, tokens, rewards = (grid[row][column] for row in range(3))
        start_us = act.window.start_us
        shown = [p for p in act.points if start_us <= p.at_us <= act.window.end_us]
        seconds = [(point.at_us - start_us) / 1e6 for point in shown]
        serving = [point.serving for point in shown]
        instances.step(seconds, serving, where="post", color="black", label="spot instances")
        for before, after in pairwise(shown):
            if before.living - after.living:
                instances.axvline((after.at_us - start_us) / 1e6, color="tab:red", alpha=0.5)
        for color, run in zip(COLORS, act.runs, strict=False):
            steps = run.record.steps
            at_s = [(step.ended_us - start_us) / 1e6 for step in steps]
            rate = smoothed([step.tokens / step.wall_s for step in steps])
            tokens.plot(at_s, rate, color=color, label=run.task)
            rewards.plot(at_s, run.record.rewards, ".", color=color, alpha=0.3)
            rewards.plot(at_s, smoothed(run.record.rewards), color=color, label=run.task)
        instances.set(title=title, ylabel="spot instances (red: killed)")
        tokens.set(ylabel="tokens/s")
        rewards.set(ylabel="mean reward", xlabel="seconds", ylim=(0, 1))
    figure.legend(*grid[2][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


def plot_serving(path: Path, act: ServingAct) -> None:
    """Write a picture of latencies by whether the guest was at work, its tokens, and rewards."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.subplots(2, 2)
    for axes, name in zip(grid[0], LATENCIES, strict=True):
        for color, which, aside in zip(COLORS, ("alone", "lending"), (-0.2, 0.2), strict=False):
            times = [act.report[which][name].get(p, 0.0) for p in ("p50", "p90", "p99")]
            axes.bar([at + aside for at in range(3)], times, 0.4, color=color, label=which)
        objective = act.report["alone"][name]["objective"]
        axes.axhline(objective, color="black", linestyle="--", label="objective")
        axes.set_xticks(range(3), ["p50", "p90", "p99"])
        axes.set(title=f"{name.upper()} of those served", ylabel="ms")
        axes.legend()
    tokens, rewards = grid[1]
    tokens.plot([p.at_s for p in act.points], [p.tokens for p in act.points], color=COLORS[1])
    tokens.set(title="Tokens harvested", xlabel="seconds", ylabel="tokens")
    for color, run, label in zip(
        COLORS, (act.without, act.lent), ("without", "lent"), strict=False
    ):
        rewards.plot(smoothed(run.record.rewards), color=color, label=label)
    rewards.set(title="Rewards", xlabel="GRPO step", ylabel="mean reward", ylim=(0, 1))
    rewards.legend()
    figure.savefig(path, dpi=120)


def _legend(names: Mapping[str, str]) -> list[tuple[str, str]]:
    jobs = list(zip(COLORS, names.values(), strict=False))
    return [*jobs, (MOVE_COLOR, "load, offload")]


def _draw(axes: Axes, *, spans: Sequence[Span], window: Window, names: Mapping[str, str]) -> None:
    shown = within(spans, window)
    colors = dict(zip(names, COLORS, strict=False))
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
