"""Programs of rewards: stages with limits, and the functions that run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from plexsvc.reward.core.vocabulary import LEAST, ProgramSpec, Resource, StageSpec
from plexsvc.reward.sandbox.base import Sandbox, StageLimits

OUTPUT_CHARS: Final = 8 << 10
"""Characters of a program's output that a verdict carries; the middle of a longer one is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One run of one stage."""

    text: str
    """What the model wrote."""
    reference: Any = None
    """As the client gave it, from JSON."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What the stage before left, by path."""
    limits: StageLimits = field(default_factory=StageLimits)
    sandbox: Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The verdict: no further stage runs."""

    score: float
    output: str = ""
    detail: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """For the caller, beside the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The next stage is to run, with these files."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The stage took longer, or more, than it may."""

    output: str = ""
    detail: str = ""
    """What it exceeded; empty: its time."""


Outcome = Scored | Passed | TimedOut


class RefusedError(Exception):
    """The program can give no score: its settings or the sample's reference make no sense to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStage:
    """One step of a program."""

    name: str
    run: Callable[[StageRun], Outcome]
    limits: StageLimits = field(default_factory=StageLimits)
    is_sandboxed: bool = False
    """Whether it runs what a model or a tenant wrote, so that it must not run without a sandbox."""
    resource: str = "cpu"
    """What it holds while it runs, `limits.cpus` of them, or `limits.gpus` and a processor."""

    @property
    def holds(self) -> Resource:
        """What a worker that runs it holds."""
        memory_bytes = max(LEAST.memory_bytes, self.limits.memory_bytes)
        return Resource(cpus=self.limits.cpus, memory_bytes=memory_bytes, gpus=self.limits.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its stages, in order."""

    name: str
    text: str
    """What it compares, for people."""
    stages: tuple[ProgramStage, ...]
    settings: Mapping[str, type] | None
    """Names and types of the settings that it takes; None: any."""
    timeout_score: float = -1.0
    definition: bytes = b""
    """Of a tenant's own program, from which workers make it; empty: it is shipped."""
    version: str = ""
    imports: tuple[str, ...] = ()
    """Modules that take long to import, for workers that are made warm."""

    @property
    def spec(self) -> ProgramSpec:
        """What the core must know."""
        stages = tuple(
            StageSpec(name=stage.name, timeout_us=stage.limits.wall_us, resource=stage.holds)
            for stage in self.stages
        )
        return ProgramSpec(name=self.name, stages=stages, timeout_score=self.timeout_score)


def cut(text: str, limit: int = OUTPUT_CHARS) -> str:
    """Return `text`, its middle left out where it is longer than `limit` characters.

    >>> cut("abcdefghij", 4)
    'ab ... 6 characters left out ... ij'
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters left out ... {text[-half:]}"
