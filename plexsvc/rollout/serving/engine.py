"""A serving engine and its guests in one process: built, stepped by one policy, reported on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from plexsvc.clock import Clock
from plexsvc.errors import bad_request
from plexsvc.rollout.core.lending import DAY_MIN, GuestRecord, Lender
from plexsvc.rollout.core.lent_memory import MemoryBudget
from plexsvc.rollout.engines.executor import StepExecutor
from plexsvc.rollout.serving.config import ServingConfig
from plexsvc.rollout.serving.lending import MINUTE_US, Coserving
from plexsvc.rollout.serving.report import LatencyLog

if TYPE_CHECKING:
    from fastapi import FastAPI

    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

GUEST_IS_THERE_US: Final = 1_000_000
"""So long after a step of a guest a request counts as served beside it."""


class ServingEngine:
    """What `plexctl serve` runs. Create with `start`, inside a running event loop."""

    def __init__(self, config: ServingConfig, *, clock: Clock) -> None:
        self.config, self.latencies = config, LatencyLog()
        self.front: Any = None
        """vLLM's `AsyncLLM`."""
        self.guests: list[VllmEngine] = []
        self.coserving: Coserving | None = None
        self.instances: list[str] = []
        """Where rollout managers reach each guest."""
        self.executor = StepExecutor(clock=clock)
        self._clock, self._started_us = clock, clock.monotonic_us()

    @classmethod
    async def start(cls, config: ServingConfig, *, clock: Clock) -> ServingEngine:
        """Return an engine that serves, with its guests if it lends.

        Raises:
            PlexError: `unknown_model`, or `bad_request` for what vLLM cannot run.
        """
        from plexsvc.rollout.engines.vllm import front

        made = cls(config, clock=clock)
        try:
            made.front = await front.start_front(
                made._config_of(config.model), made.executor, name=config.name, tell=made._tell
            )
        except (ValueError, RuntimeError) as error:
            raise bad_request(f"vLLM cannot serve {config.model} as configured: {error}") from error
        if config.guests:
            await made._invite()
        return made

    async def app(self) -> FastAPI:
        """Return vLLM's OpenAI application."""
        from plexsvc.rollout.engines.vllm import front

        config = self.config
        return await front.openai_app(self.front, model=str(config.model), name=config.name)

    async def close(self) -> None:
        """End all engines."""
        for guest in self.guests:
            await guest.dispose()
        await asyncio.to_thread(self.front.shutdown)
        self.executor.close()

    def is_lent(self) -> bool:
        """Whether guests may run at this time of day, as its owner says."""
        if self.coserving is None:
            return False
        lender, minute = self.coserving.lender, self._clock.wall_us() // MINUTE_US % DAY_MIN
        return lender.is_lent and lender.terms.is_open(minute)

    async def lend(self) -> Mapping[str, Any]:
        """Let the guests run."""

        def give(lending: Coserving) -> Mapping[str, Any]:
            lending.lend()
            return {"is_lent": True, "guest_bytes": lending.budget.guest_bytes}

        return await self._between_steps(give)

    async def reclaim(self) -> Mapping[str, Any]:
        """Take everything back; say how long it took and what guests still have resident."""
        asked_us = self._clock.monotonic_us()

        def take(lending: Coserving) -> Mapping[str, Any]:
            held, left = lending.budget.guest_bytes, lending.reclaim()
            waited_us = self._clock.monotonic_us() - asked_us
            return {"is_lent": False, "took_us": waited_us, "had_bytes": held, "left_bytes": left}

        return await self._between_steps(take)

    async def report(self) -> Mapping[str, Any]:
        """Return latencies with and without guests, and what those got."""
        found: dict[str, Any] = {
            "name": self.config.name,
            "alone": self.latencies.alone.summary(self.config.objectives),
            "lending": self.latencies.lending.summary(self.config.objectives),
        }
        lending = self.coserving
        if lending is None:
            return found
        up_us = self._clock.monotonic_us() - self._started_us
        idle_us = max(1, up_us - lending.serving_us)
        guests = [self._harvested(place, idle_us) for place in range(len(self.guests))]
        shares = [one.harvest.guest_us / idle_us for one in lending.guests]
        return found | {
            "is_lent": lending.lender.is_lent,
            "harvested_tokens": sum(one["tokens"] for one in guests),
            "harvested_share_of_idle": round(sum(shares), 4),
            "serving_share": round(lending.serving_us / up_us, 4),
            "stalls": sum(one.harvest.stalls for one in lending.guests),
            "memory_cuts": lending.budget.cuts,
            "reclaims_us": list(lending.reclaims_us),
            "guests": guests,
        }

    def _harvested(self, place: int, idle_us: int) -> dict[str, Any]:
        assert self.coserving is not None
        harvest = self.coserving.guests[place].harvest
        return {
            "name": self.config.guest_names[place],
            "model": str(self.config.guests[place]),
            "instance": self.instances[place] if self.instances else "",
            "tokens": self.guests[place].stats().generated_tokens,
            "share_of_idle": round(harvest.guest_us / idle_us, 4),
        }

    async def _between_steps(
        self, act: Callable[[Coserving], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        lending = self.coserving
        if lending is None:
            return {"error": f"{self.config.name} has nothing to lend to; serve it with --lend"}
        return await asyncio.wrap_future(self.executor.call(lambda: act(lending)))

    async def _invite(self) -> None:
        """Build the guests and let the policy of lending choose who steps."""
        from plexsvc.rollout.engines import vllm

        for model in self.config.guests:
            guest = await vllm.VllmEngine.start(
                self._config_of(model), clock=self._clock, executor=self.executor
            )
            self.guests.append(guest)

        def share() -> Coserving:
            terms = self.config.terms
            return Coserving(
                self.front.engine_core.share(self._clock),
                [guest.share() for guest in self.guests],
                lender=Lender(
                    objectives=self.config.objectives,
                    terms=terms,
                    guests=[GuestRecord() for _ in self.guests],
                ),
                budget=MemoryBudget(total_bytes=self.config.kv_bytes, share=terms.share),
                clock=self._clock,
            )

        self.coserving = await asyncio.wrap_future(self.executor.call(share))
        await asyncio.to_thread(self.executor.follow, self.coserving)

    def _config_of(self, model: Path) -> VllmConfig:
        from plexsvc.rollout.engines import vllm

        config = self.config
        return vllm.VllmConfig(
            model=model,
            dtype="",
            max_model_len=config.max_model_len,
            kv_cache_bytes=config.kv_bytes,
            max_num_seqs=config.max_num_seqs,
        )

    def _tell(self, ttfts_s: list[float], tpots_s: list[float]) -> None:
        lending, now_us = self.coserving, self._clock.monotonic_us()
        has_guest = lending is not None and now_us - lending.guest_us < GUEST_IS_THERE_US
        self.latencies.add(ttfts_s=ttfts_s, tpots_s=tpots_s, has_guest=has_guest)
