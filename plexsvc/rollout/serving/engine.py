"""A serving engine and its guest in one process: built, stepped by one policy, reported on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.lending import DAY_MIN, Lender
from plexsvc.rollout.core.lent_memory import MemoryBudget
from plexsvc.rollout.engines.executor import StepExecutor
from plexsvc.rollout.serving.config import ServingConfig
from plexsvc.rollout.serving.lending import MINUTE_US, Coserving
from plexsvc.rollout.serving.report import LatencyLog

if TYPE_CHECKING:
    from fastapi import FastAPI

    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

GUEST_IS_THERE_US: Final = 1_000_000
"""So long after a step of the guest a request counts as served beside it."""


class ServingEngine:
    """What `plexctl serve` runs. Create with `start`, inside a running event loop."""

    def __init__(self, config: ServingConfig, *, clock: Clock) -> None:
        self.config, self.latencies = config, LatencyLog()
        self.front: Any = None
        """vLLM's `AsyncLLM`."""
        self.guest: VllmEngine | None = None
        self.coserving: Coserving | None = None
        self.instance = ""
        """Where rollout managers reach the guest."""
        self.executor = StepExecutor(clock=clock)
        self._clock, self._started_us = clock, clock.monotonic_us()

    @classmethod
    async def start(cls, config: ServingConfig, *, clock: Clock) -> ServingEngine:
        """Return an engine that serves, with its guest if it lends.

        Raises:
            PlexError: `unknown_model`, or `bad_request` for what vLLM cannot run.
        """
        from plexsvc.rollout.engines.vllm import front  # noqa: PLC0415 - this process's own

        made = cls(config, clock=clock)
        try:
            made.front = await front.start_front(
                made._config_of(config.model), made.executor, name=config.name, tell=made._tell
            )
        except (ValueError, RuntimeError) as error:
            text = f"vLLM cannot serve {config.model} as configured: {error}"
            raise PlexError(ErrorCode.BAD_REQUEST, text) from error
        if config.guest is not None:
            await made._invite()
        return made

    async def app(self) -> FastAPI:
        """Return vLLM's OpenAI application."""
        from plexsvc.rollout.engines.vllm import front  # noqa: PLC0415

        config = self.config
        return await front.openai_app(self.front, model=str(config.model), name=config.name)

    async def close(self) -> None:
        """End both engines."""
        if self.guest is not None:
            await self.guest.dispose()
        await asyncio.to_thread(self.front.shutdown)
        self.executor.close()

    def is_lent(self) -> bool:
        """Whether the guest may run at this time of day, as its owner says."""
        if self.coserving is None:
            return False
        lender, minute = self.coserving.lender, self._clock.wall_us() // MINUTE_US % DAY_MIN
        return lender.is_lent and lender.terms.is_open(minute)

    async def lend(self) -> Mapping[str, Any]:
        """Let the guest run."""

        def give(lending: Coserving) -> Mapping[str, Any]:
            lending.lend()
            return {"is_lent": True, "guest_bytes": lending.budget.guest_bytes}

        return await self._between_steps(give)

    async def reclaim(self) -> Mapping[str, Any]:
        """Take everything back; say how long it took and what the guest still has resident."""
        asked_us = self._clock.monotonic_us()

        def take(lending: Coserving) -> Mapping[str, Any]:
            held, left = lending.budget.guest_bytes, lending.reclaim()
            waited_us = self._clock.monotonic_us() - asked_us
            return {"is_lent": False, "took_us": waited_us, "had_bytes": held, "left_bytes": left}

        return await self._between_steps(take)

    async def report(self) -> Mapping[str, Any]:
        """Return latencies with and without the guest, and what it got."""
        found: dict[str, Any] = {
            "name": self.config.name,
            "alone": self.latencies.alone.summary(self.config.objectives),
            "lending": self.latencies.lending.summary(self.config.objectives),
        }
        if self.coserving is None or self.guest is None:
            return found
        harvest, up_us = self.coserving.harvest, self._clock.monotonic_us() - self._started_us
        idle_us = max(1, up_us - harvest.serving_us)
        return found | {
            "is_lent": self.coserving.lender.is_lent,
            "instance": self.instance,
            "harvested_tokens": self.guest.stats().generated_tokens,
            "harvested_share_of_idle": round(harvest.guest_us / idle_us, 4),
            "serving_share": round(harvest.serving_us / up_us, 4),
            "stalls": harvest.stalls,
            "memory_cuts": self.coserving.budget.cuts,
            "reclaims_us": list(self.coserving.reclaims_us),
        }

    async def _between_steps(
        self, act: Callable[[Coserving], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        lending = self.coserving
        if lending is None:
            return {"error": f"{self.config.name} has nothing to lend to; serve it with --lend"}
        return await asyncio.wrap_future(self.executor.call(lambda: act(lending)))

    async def _invite(self) -> None:
        """Build the guest and let the policy of lending choose who steps."""
        from plexsvc.rollout.engines import vllm  # noqa: PLC0415

        assert self.config.guest is not None
        guest = await vllm.VllmEngine.start(
            self._config_of(self.config.guest), clock=self._clock, executor=self.executor
        )

        def share() -> Coserving:
            return Coserving(
                self.front.engine_core.share(self._clock),
                guest.share(),
                lender=Lender(objectives=self.config.objectives, terms=self.config.terms),
                budget=MemoryBudget(
                    total_bytes=self.config.kv_bytes, share=self.config.terms.share
                ),
                clock=self._clock,
            )

        self.coserving = await asyncio.wrap_future(self.executor.call(share))
        self.guest = guest
        await asyncio.to_thread(self.executor.follow, self.coserving)

    def _config_of(self, model: Path) -> VllmConfig:
        from plexsvc.rollout.engines import vllm  # noqa: PLC0415

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
