"""Plan of one picture: when each resident of a group is to have its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plexclient.wire.v1 import service_pb2

PPM: Final = 1_000_000
_MIB: Final = 1 << 20
NO_CAP_PPM: Final = 10 * PPM
"""A cap on duty from which it is none."""
HIDDEN: Final = "another tenant's"

Spans = list[tuple[int, int]]
"""Half-open stretches of time in microseconds, sorted, disjoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureWindow:
    """What a picture shows."""

    start_us: int
    length_us: int

    @property
    def end_us(self) -> int:
        """Return where it ends."""
        return self.start_us + self.length_us

    @classmethod
    def of(cls, pack: service_pb2.PackReply) -> PictureWindow:
        """Return the window of a reply."""
        return cls(start_us=pack.now_us, length_us=max(1, pack.window_us))


def planned(resident: service_pb2.PackResident, window: PictureWindow) -> Spans:
    """Return the windows of a resident on the ring; of a flat one none.

    >>> busy = [service_pb2.BusySpan(start_us=8, end_us=10)]
    >>> planned(service_pb2.PackResident(busy=busy), PictureWindow(start_us=9, length_us=15))
    [(9, 10)]
    """
    clipped = (
        (max(window.start_us, busy.start_us), min(window.end_us, busy.end_us))
        for busy in resident.busy
    )
    return [(start_us, end_us) for start_us, end_us in clipped if start_us < end_us]


def shares(spans: Spans, window: PictureWindow, *, columns: int) -> list[float]:
    """Return the busy share of each of `columns` equal parts of the window, 0 to 1.

    >>> shares([(0, 5), (12, 15)], PictureWindow(start_us=0, length_us=20), columns=4)
    [1.0, 0.0, 0.6, 0.0]
    """
    width = window.length_us / columns
    totals = [0.0] * columns
    for start_us, end_us in spans:
        start, end = (start_us - window.start_us) / width, (end_us - window.start_us) / width
        for column in range(int(start), min(columns, int(-(-end // 1)))):
            totals[column] += max(0.0, min(end, column + 1) - max(start, column))
    return [round(min(1.0, total), 9) for total in totals]


def label(job_name: str, job_id: str, name: str) -> str:
    """Return what a deployment is called in pictures.

    >>> label("math", "job-1", "actor"), label("", "", "")
    ('math/actor', "another tenant's")
    """
    job = job_name or job_id
    return f"{job}/{name}" if job else HIDDEN


def slowdown(*, predicted_ppm: int, measured_ppm: int, bound_ppm: int) -> str:
    """Return slowdown as predicted and as measured, and its bound.

    >>> slowdown(predicted_ppm=1_040_000, measured_ppm=0, bound_ppm=1_500_000)
    '1.04 / - ≤ 1.50'
    """
    return f"{ratio(predicted_ppm)} / {ratio(measured_ppm)} ≤ {ratio(bound_ppm)}"


def ratio(ppm: int) -> str:
    """Return a slowdown or a dash where it is not known.

    >>> ratio(1_050_000), ratio(0)
    ('1.05', '-')
    """
    return f"{ppm / PPM:.2f}" if ppm else "-"


def length(length_us: int) -> str:
    """Return a length of time.

    >>> length(1_500_000), length(90_000_000), length(20_000)
    ('1.5 s', '90 s', '0.02 s')
    >>> length(1_234_000_000), length(28_800_000_000), length(7_776_000_000_000)
    ('20.6 min', '8 h', '2160 h')
    """
    size_s = length_us / 1e6
    for unit, unit_s in (("s", 1), ("min", 60)):
        if size_s < 300 * unit_s:
            return f"{size_s / unit_s:.3g} {unit}"
    return f"{round(size_s / 3600, 1):g} h"


def notes(resident: service_pb2.PackResident) -> list[str]:
    """Return what is special about a resident."""
    told = [
        (resident.is_cold, "being profiled"),
        (resident.is_late, "late"),
        (resident.is_pinned, "pinned"),
        (bool(resident.moving_to), f"moves to {', '.join(resident.moving_to)}"),
    ]
    return [note for is_so, note in told if is_so]


def title(group: service_pb2.PackGroup) -> str:
    """Return a group's heading: where it is and how full."""
    devices = compact(group.devices)
    duty = f"duty {group.duty_ppm / PPM:.0%}"
    if group.duty_cap_ppm < NO_CAP_PPM:
        duty += f" of at most {group.duty_cap_ppm / PPM:.0%}"
    head = f"{group.kind} group {group.group_id} · {devices} · {duty}"
    if group.booked:
        head += f"\nhost memory {_booked(group)}"
    return f"{head}\nclosed: {group.closed}" if group.closed else head


def _booked(group: service_pb2.PackGroup) -> str:
    """Return what is booked on the group's fullest host, and for what."""
    uses = ", ".join(f"{one.use} {one.nbytes / _MIB:,.0f}" for one in group.booked)
    return f"{group.state_bytes / _MIB:,.0f} of {group.parked_bytes / _MIB:,.0f} MiB ({uses})"


def compact(devices: Sequence[str]) -> str:
    """Return devices with each node named once.

    >>> compact(["node-a:0", "node-a:1", "node-b:0"])
    'node-a:0,1 node-b:0'
    """
    by_node: dict[str, list[str]] = {}
    for device in devices:
        node, _, index = device.rpartition(":")
        by_node.setdefault(node, []).append(index)
    return " ".join(f"{node}:{','.join(indexes)}" for node, indexes in by_node.items())
