"""Spot devices that come and go as a recorded trace says, its time scaled."""

from __future__ import annotations

import asyncio
import csv
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from plexsvc.clock import Clock
from plexsvc.errors import bad_request
from plexsvc.log import Log
from plexsvc.rollout.core.pool import SlotCame, SlotGone, SlotId, SlotNoticed, SlotPriced
from plexsvc.rollout.providers.base import Hosts, Tell

log = Log(__name__)

KEYS: Final = ("trace_id", "segment", "variant")
"""Columns that may name a part of a file."""

NOTHING: Final = frozenset({"no-op", "DONE"})
"""Events of rows that change nothing."""

LOOK_US: Final = 200_000


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node of the trace that comes or goes."""

    at_us: int
    is_add: bool
    node: str


@dataclass(frozen=True, slots=True)
class PriceChange:
    """What an instance costs an hour from then on, on every node."""

    at_us: int
    price: float


Change: TypeAlias = NodeChange | PriceChange


def read_trace(path: Path, *, segment: str = "") -> list[Change]:
    """Return the changes of a trace in the order of their times.

    The file is CSV, perhaps compressed by gzip, with columns t_ms, event (add, remove, price,
    no-op), node or nodes (separated by `;`) and, for prices, price. `segment` picks the rows of
    which `trace_id`, `segment` or `variant` is that; several are separated by `/`.

    Raises:
        PlexError: `bad_request`, naming file and line, for what cannot be: a node that goes but is
            not there, or comes twice; time that runs backwards; a price below 0; no row at all.
    """
    changes: list[Change] = []
    there: set[str] = set()
    for line, row in _rows(path, segment=segment):
        where = f"{path}, line {line}"
        at_us = _time(row, where=where, after_us=changes[-1].at_us if changes else 0)
        event = row.get("event", "")
        if event in NOTHING:
            continue
        if event == "price":
            changes.append(PriceChange(at_us, _price(row, where=where)))
            continue
        if event not in {"add", "remove"}:
            raise bad_request(f"{where}: event is {event!r}; it is add, remove, price or no-op")
        names = (row.get("node") or row.get("nodes") or "").split(";")
        for node in filter(None, names):
            if (node in there) == (event == "add"):
                wrong = "comes and is there already" if event == "add" else "goes and is not there"
                raise bad_request(f"{where}: node {node!r} {wrong}")
            there ^= {node}
            changes.append(NodeChange(at_us, event == "add", node))
    if not any(isinstance(change, NodeChange) for change in changes):
        raise bad_request(f"{path}: no node comes or goes in segment {segment!r}")
    return changes


class TraceProvider:
    """Replays a trace on the spot devices of the cluster, whose instances it kills.

    A node of the trace takes any device that is free; one that finds none does not come. When it
    goes its device is noticed `notice_us` before, and its process is killed.
    """

    def __init__(
        self,
        hosts: Hosts,
        clock: Clock,
        changes: Iterable[Change],
        *,
        scale: float,
        notice_us: int,
        price: float,
    ) -> None:
        """Play `scale` times as fast as recorded; `notice_us` is of recorded time, too."""
        self._hosts, self._clock, self._price = hosts, clock, price
        steps = _with_notices(changes, notice_us=notice_us)
        self._plan = sorted(steps, key=lambda step: step[0])  # stable: ties stay in their order
        self._scale = scale
        self._slots: dict[str, SlotId] = {}
        """Of the nodes of the trace that are there."""

    async def run(self, tell: Tell) -> None:
        """Tell what comes, is noticed and goes, then nothing, until cancelled."""
        while not self._hosts.slots():
            await self._clock.sleep(LOOK_US)
        begun_us = self._clock.monotonic_us()
        for at_us, what, node in self._plan:
            due_us = begun_us + round(at_us / self._scale)
            await self._clock.sleep(max(0, due_us - self._clock.monotonic_us()))
            if isinstance(what, PriceChange):
                log.info("price of the trace", price=what.price)
                self._price = what.price
                for slot_id in self._slots.values():
                    tell(SlotPriced(slot_id=slot_id, price=what.price))
            else:
                self._play(what, node, tell)
        await asyncio.Event().wait()

    def _play(self, what: str, node: str, tell: Tell) -> None:
        if what == "add":
            taken = set(self._slots.values())
            free = [slot_id for slot_id in self._hosts.slots() if slot_id not in taken]
            if free:
                self._slots[node] = free[0]
                tell(SlotCame(slot_id=free[0], price=self._price))
            else:
                log.info("node of the trace finds no device", node=node)
        elif node in self._slots:
            slot_id = self._slots[node]
            log.info("spot device of the trace", slot=slot_id, event=what)
            if what == "notice":
                tell(SlotNoticed(slot_id=slot_id))
            else:
                del self._slots[node]
                tell(SlotGone(slot_id=slot_id))


def _with_notices(
    changes: Iterable[Change], *, notice_us: int
) -> Iterator[tuple[int, str | PriceChange, str]]:
    """Yield what happens when, a notice before each removal, but not before its node came."""
    came: dict[str, int] = {}
    for change in changes:
        if isinstance(change, PriceChange):
            yield change.at_us, change, ""
        elif change.is_add:
            came[change.node] = change.at_us
            yield change.at_us, "add", change.node
        else:
            if notice_us:
                yield max(came[change.node], change.at_us - notice_us), "notice", change.node
            yield change.at_us, "remove", change.node


def _rows(path: Path, *, segment: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    wanted = set(filter(None, segment.split("/")))
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                if wanted <= {row.get(key) for key in KEYS}:
                    yield line, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise bad_request(f"cannot read the trace {path}: {error}") from error


def _price(row: Mapping[str, str], *, where: str) -> float:
    try:
        price = float(row["price"])
    except (KeyError, TypeError, ValueError):
        price = math.nan
    if not 0 <= price < math.inf:
        raise bad_request(f"{where}: price is {row.get('price')!r}; it is a number from 0")
    return price


def _time(row: Mapping[str, str], *, where: str, after_us: int) -> int:
    try:
        at_us = round(float(row["t_ms"]) * 1000)
    except (KeyError, TypeError, ValueError) as error:
        raise bad_request(f"{where}: t_ms is {row.get('t_ms')!r}; it is a number of ms") from error
    if at_us < after_us:
        raise bad_request(
            f"{where}: t_ms is {row['t_ms']}, before {after_us / 1000:g}: time runs on"
        )
    return at_us
