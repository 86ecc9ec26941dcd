"""PNG picture of the ring of each node group."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plexclient.wire.v1 import service_pb2
from plexsvc.show.pack_plan import (
    PPM,
    PictureWindow,
    label,
    length,
    notes,
    planned,
    ratio,
    title,
)

COLORS: Final = (
    *("tab:cyan", "tab:purple", "tab:orange", "tab:green", "tab:blue", "tab:pink", "tab:gray"),
)
_ROW_INCHES: Final = 0.45
_HEAD_INCHES: Final = 0.9
_MAX_INCHES: Final = 200.0
_DPI: Final = 120


def draw_pack(path: Path, pack: service_pb2.PackReply) -> None:
    """Write one row of axes a group, one lane a deployment.

    Raises:
        OSError: the file cannot be written.
        ValueError: its name does not end like a picture's.
    """
    window = PictureWindow.of(pack)
    groups = list(pack.groups)
    heights = [_HEAD_INCHES + _ROW_INCHES * len(g.residents) for g in groups] or [1.0]
    size = (11, min(_MAX_INCHES, sum(heights)))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(heights), squeeze=False, height_ratios=heights)
    for (axes,), group in zip(rows, groups, strict=False):
        _draw_group(axes, group, window)
    if not groups:
        rows[0][0].set_title("no training deployment is placed")
        rows[0][0].set_axis_off()
    figure.savefig(path, dpi=_DPI)


def _draw_group(axes: Axes, group: service_pb2.PackGroup, window: PictureWindow) -> None:
    names = [_name(resident) for resident in group.residents]
    for number, resident in enumerate(group.residents):
        color, is_flat = COLORS[number % len(COLORS)], not resident.busy
        spans = [(window.start_us, window.end_us)] if is_flat else planned(resident, window)
        bars = [((s - window.start_us) / 1e6, (e - s) / 1e6) for s, e in spans]
        height = 0.8 * (resident.duty_ppm / PPM if is_flat else 1)  # flat: mass at its duty
        axes.broken_barh(bars, (number - height / 2, height), facecolors=color)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlim=(0, window.length_us / 1e6), ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel("seconds from now", fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(title(group), fontsize=9, loc="left")


def _name(resident: service_pb2.PackResident) -> str:
    figures = (
        f"shift {length(resident.shift_us)}, duty {resident.duty_ppm / PPM:.0%}, slowdown "
        f"{ratio(resident.predicted_ppm)} predicted {ratio(resident.measured_ppm)} measured, "
        f"wait {resident.wait_ratio_ppm / PPM:.0%}"
    )
    name = label(resident.job_name, resident.job_id, resident.name)
    return "\n".join([", ".join([name, *notes(resident)]), figures])
