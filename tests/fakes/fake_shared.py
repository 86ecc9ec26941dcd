"""Engines that share a device and only note what they are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from plexsvc.rollout.core.lending import Guest, Serving
from plexsvc.rollout.core.step_times import Stepped


@dataclass
class FakeKv:
    block_bytes: int = 100
    used_bytes: int = 0
    unused: list[tuple[int, object]] = field(default_factory=list)

    def cached(self) -> Iterable[tuple[int, object]]:
        return self.unused

    def forget(self, blocks: Iterable[tuple[int, object]]) -> None:
        self.unused = [one for one in self.unused if one not in list(blocks)]

    def resident_bytes(self) -> int:
        return self.used_bytes


@dataclass
class FakeShared:
    """An engine that does as it is told, in the time that the test says."""

    queued: int = 0
    newest_us: list[int] = field(default_factory=list)
    work: bool = False
    limits: list[int] = field(default_factory=list)
    tokens: int = 0
    version: str = "0"
    handed_back: int = 0
    stepped: Stepped | None = None
    kv: FakeKv = field(default_factory=FakeKv)

    @property
    def steppable(self) -> FakeShared:
        return self

    def has_work(self) -> bool:
        return self.work

    def step(self) -> None:
        raise AssertionError("the executor steps")

    def take_step(self) -> Stepped | None:
        stepped, self.stepped = self.stepped, None
        return stepped

    def new_prompts(self) -> list[int]:
        return []

    def as_serving(self, *, is_short_of_memory: bool) -> Serving:
        return Serving(
            queued=self.queued,
            newest_token_us=self.newest_us,
            is_short_of_memory=is_short_of_memory,
        )

    def as_guest(self) -> Guest:
        return Guest(has_work=self.work, samples=4)

    def allow(self, tokens: int) -> None:
        self.tokens = tokens

    def limit(self, nbytes: int) -> None:
        self.limits.append(nbytes)

    def hand_back_all(self) -> None:
        self.handed_back += 1
