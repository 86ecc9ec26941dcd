"""Messages between node agent and zygote: one JSON object per line on a socket pair."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_LINE_BYTES: Final = 1 << 20
"""Longest line either side accepts; a process's configuration must fit."""


STACKS: Final = signal.SIGUSR2
"""Has a process write the Python stacks of all its threads to its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    """The agent wants a process. `token` names it in every report that follows."""

    token: int
    name: str
    entrypoint: str
    config: Mapping[str, Any]
    env: Mapping[str, str]
    """What its device adds to the environment (`node.gpus`); nobody outside the agent says."""
    log_path: str
    ready_path: str
    """The named pipe in which the process tells the agent where it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloaded:
    """The zygote's imports are done.

    `threads` is Python's count: it must be 1, else nothing is forked. `native_threads` is the
    kernel's: more than 1 means that a library (gRPC once it is initialised, a math library's pool)
    has started its own, which a forked process would miss.
    """

    threads: int
    native_threads: int
    took_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The process exists, as a child of the agent."""

    token: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The process could not be made."""

    token: int
    reason: str


Report = Preloaded | Forked | Refused
_REPORTS: Final[Mapping[str, type[Report]]] = {
    kind.__name__: kind for kind in (Preloaded, Forked, Refused)
}


def encode_order(order: ForkOrder) -> bytes:
    """Return `order` as one line."""
    return json.dumps(asdict(order), separators=(",", ":")).encode() + b"\n"


def decode_order(line: bytes) -> ForkOrder:
    """Return the order that `encode_order` wrote."""
    return ForkOrder(**json.loads(line))


def encode_report(report: Report) -> bytes:
    """Return `report` as one line."""
    table = {"kind": type(report).__name__, **asdict(report)}
    return json.dumps(table, separators=(",", ":")).encode() + b"\n"


def decode_report(line: bytes) -> Report:
    """Return the report that `encode_report` wrote."""
    table = json.loads(line)
    return _REPORTS[table.pop("kind")](**table)
