"""Text of `plexctl pack`: the ring of each node group, what-if answers, moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plexclient.wire.v1 import service_pb2
from plexsvc.show.pack_plan import (
    PPM,
    PictureWindow,
    compact,
    label,
    length,
    notes,
    planned,
    ratio,
    shares,
    slowdown,
    title,
)
from plexsvc.show.status import table_of

COLORS: Final = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "white")
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_MAX_LABEL: Final = 28
_MIN_COLUMNS: Final = 20
_MAX_COLUMNS: Final = 240
_TICKS: Final = 4
_MIB: Final = 1 << 20


def pack_view(pack: service_pb2.PackReply, *, width: int) -> RenderableType:
    """Return the picture of every group, and who waits outside. Lines fit in `width`."""
    window = PictureWindow.of(pack)
    head = Text(
        f"policy {pack.policy} · rings of up to {length(pack.horizon_us)}, shown: the next "
        f"{length(window.length_us)}",
        style="dim",
    )
    parts: list[RenderableType] = [head]
    for group in pack.groups:
        parts += [Text(), _ring(group, window, width=width), _figures(group)]
    if not pack.groups:
        parts.append(Text("no training deployment is placed"))
    if pack.idle:
        parts += [Text(), Text(f"idle: {compact(pack.idle)}")]
    parts += [_waiting_line(pack, waiting) for waiting in pack.waiting]
    return Group(*parts)


def what_if_view(reply: service_pb2.WhatIfReply) -> RenderableType:
    """Return where a job would go and what it would cost, or why it would wait."""
    if not reply.fits:
        return Text("\n".join(["it would wait:", *(f"  {reason}" for reason in reply.reasons)]))
    joined = " and ".join(map(str, reply.group_ids))
    where = "a group of its own" if reply.opens_group else f"group {joined}"
    head = (
        f"it would start at once on {compact(reply.devices)} ({where}); predicted slowdown "
        f"{ratio(reply.predicted_ppm)}"
    )
    if reply.place:
        head += f"\n{reply.place}"
    if not reply.neighbours:
        return Text(head)
    table = table_of("costs", "slowdown now", "then", "bound")
    for one in reply.neighbours:
        table.add_row(
            label(one.job_name, one.job_id, one.name),
            ratio(one.before_ppm),
            ratio(one.after_ppm),
            ratio(one.bound_ppm),
        )
    return Group(Text(head), table)


def moves_view(reply: service_pb2.MovesReply) -> RenderableType:
    """Return the moves that were ordered, and why others were not."""
    lines = [
        f"{label(move.job_name, move.job_id, move.name)}: {compact(move.from_devices)}"
        f" → {compact(move.to_devices)}, {move.state_bytes / _MIB:.1f} MiB"
        + (f" ({move.reason})" if move.reason else "")
        for move in reply.moves
    ]
    return Text("\n".join([*(lines or ["nothing moves"]), *(f"  {r}" for r in reply.reasons)]))


def _ring(group: service_pb2.PackGroup, window: PictureWindow, *, width: int) -> RenderableType:
    labels = [_label(r)[:_MAX_LABEL] for r in group.residents]
    indent = max(map(len, labels), default=0)
    columns = min(_MAX_COLUMNS, max(_MIN_COLUMNS, width - indent - 4))
    lines = [Text(title(group), style="bold"), Text(" " * (indent + 2) + _axis(window, columns))]
    for number, (name, resident) in enumerate(zip(labels, group.residents, strict=True)):
        parts = shares(planned(resident, window), window, columns=columns)
        if not resident.busy:  # flat: mass at its duty
            parts = [resident.duty_ppm / PPM] * columns
        bars = "".join(_LEVELS[-int(-share * (len(_LEVELS) - 1) // 1)] for share in parts)
        line = Text(name.ljust(indent) + " ▕").append(bars, style=COLORS[number % len(COLORS)])
        lines.append(line.append("▏"))
    told = zip(labels, group.residents, strict=True)
    lines += [Text(f"{name}: {one.place}", style="dim") for name, one in told if one.place]
    return Group(*lines)


def _axis(window: PictureWindow, columns: int) -> str:
    """Return tick labels: seconds from now."""
    line = ""
    for tick in range(_TICKS):
        at = tick * columns // _TICKS
        text = "now" if tick == 0 else f"+{length(window.length_us * tick // _TICKS)}"
        line = line.ljust(at) + text
    return line[:columns]


def _figures(group: service_pb2.PackGroup) -> Table:
    table = table_of(
        *("deployment", "on", "period", "shift", "duty", "slowdown p / m ≤ bound", "wait"),
        *("MiB", "notes"),
    )
    for number, resident in enumerate(group.residents):
        table.add_row(
            Text(_label(resident), style=COLORS[number % len(COLORS)]),
            compact(resident.devices),
            length(resident.period_us),
            length(resident.shift_us),
            f"{resident.duty_ppm / PPM:.0%}",
            slowdown(
                predicted_ppm=resident.predicted_ppm,
                measured_ppm=resident.measured_ppm,
                bound_ppm=resident.bound_ppm,
            ),
            f"{resident.wait_ratio_ppm / PPM:.0%}",
            f"{resident.state_bytes / _MIB:.1f}",
            ", ".join(notes(resident)),
        )
    return table


def demand_view(demand: Iterable[service_pb2.KindDemand]) -> RenderableType:
    """Return the table of `plexctl wanted`."""
    table = table_of("kind", "missing", "idle", "wanted")
    for one in demand:
        told = ", ".join(f"{count} ({reason})" for reason, count in one.wanted.items())
        table.add_row(one.kind, str(one.missing), str(one.idle), told)
    return table


def _label(resident: service_pb2.PackResident) -> str:
    return label(resident.job_name, resident.job_id, resident.name)


def _waiting_line(pack: service_pb2.PackReply, waiting: service_pb2.PackWaiting) -> Text:
    since = length(max(0, pack.now_us - waiting.since_us))
    name = label(waiting.job_name, waiting.job_id, waiting.name)
    return Text(f"waiting since {since}: {name}: {waiting.reason}", style="yellow")
