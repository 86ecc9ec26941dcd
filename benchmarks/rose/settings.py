"""Named workloads of agents beside serving engines that lend (ROSE), and their comparison.

A preset has a quarter of the paper's devices, trajectories and training devices, so that it can be
played step by step: 8B on 2 + 2 devices with 4 lenders, 32B on 4 + 8 with 4 lenders of 4 devices.
Traffic is dealt to 16 serving engines of which these are four; prefill and decoding share an
engine. Engines follow from the sizes of the models and a data sheet, as RLBoost's do. What the
paper publishes of its trajectories is kept: at most 32k tokens, groups of 16, prompts (with what
was said before) 77 and 86 % of the tokens, three quarters done by a third of the rollout. How the
tokens are spread over turns is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from benchmarks.rlboost.engine import EngineProfile
from benchmarks.rlboost.settings import (
    DECODE_SHARE,
    H100_BYTES,
    H100_BYTES_S,
    H100_FLOPS,
    PREFILL_SHARE,
    SECOND_US,
    STEP_US,
    TRAIN_SHARE,
    ModelSize,
)
from benchmarks.rose.agentic import AgenticOutcome, AgenticRun, AgenticWorkload, Agents, Way
from benchmarks.rose.coserved import CoservedDevice, Sharing, latency
from benchmarks.rose.traffic import Request, Traffic
from plexsvc.rollout.core.lending import Objectives

LINK_BYTES_S: Final = 200e9 / 8
"""Between training and serving; every lender pulls all weights over it."""
OWN_PULL_US: Final = 2 * SECOND_US
FLEET: Final = 16
TRAFFIC_S: Final = 3500

Lent = dict[str, dict[str, Any]]
"""The figures of each policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model with what is served beside it, and its agents."""

    rollout: ModelSize
    served: ModelSize
    gpus: int
    """Of an engine."""
    engines: int
    train_gpus: int
    batch: int
    valid: float
    objectives: Objectives
    agents: Agents


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "8b": Setting(
            rollout=ModelSize(params=8.2e9, layers=36, kv_heads=8),
            served=ModelSize(params=7.6e9, layers=28, kv_heads=4),
            gpus=1,
            engines=2,
            train_gpus=2,
            batch=64,
            valid=0.5,
            objectives=Objectives(ttft_us=500_000, tpot_us=150_000),
            agents=Agents(
                turns_median=6.5,
                turns_sigma=0.45,
                most_turns=30,
                action_median=1000,
                agent_sigma=0.35,
                turn_sigma=0.5,
                observed_tokens=100,
                first_tokens=500,
                environment_us=SECOND_US // 2,
                most_tokens=32_768,
            ),
        ),
        "32b": Setting(
            rollout=ModelSize(params=32.8e9, layers=64, kv_heads=8),
            served=ModelSize(params=32.8e9, layers=64, kv_heads=8),
            gpus=4,
            engines=1,
            train_gpus=8,
            batch=256,
            valid=0.4,
            objectives=Objectives(ttft_us=1_000_000, tpot_us=450_000),
            agents=Agents(
                turns_median=12,
                turns_sigma=0.45,
                most_turns=50,
                action_median=400,
                agent_sigma=0.35,
                turn_sigma=0.5,
                observed_tokens=150,
                first_tokens=800,
                environment_us=SECOND_US,
                most_tokens=32_768,
            ),
        ),
    }
)


def _engine(model: ModelSize, *, gpus: int, room: float, batch: int) -> EngineProfile:
    bandwidth, rate = gpus * H100_BYTES_S * DECODE_SHARE, gpus * H100_FLOPS * PREFILL_SHARE
    return EngineProfile(
        fixed_us=STEP_US + 2 * model.params / bandwidth * SECOND_US,
        each_us=2 * model.params / rate * SECOND_US,
        context_us=model.kv_bytes / bandwidth * SECOND_US,
        prefill_us=2 * model.params / rate * SECOND_US,
        kv_tokens=int(room / model.kv_bytes),
        batch=batch,
    )


def rose(model: str, way: Way) -> AgenticWorkload:
    """Return a setting of figure 7 at a quarter of its size."""
    one = SETTINGS[model]
    room = one.gpus * H100_BYTES * 0.9 - 2 * one.rollout.params
    flops = 6 * one.rollout.params * 4 / 3
    return AgenticWorkload(
        name=f"rose-{model}-{way}",
        way=way,
        profile=_engine(one.rollout, gpus=one.gpus, room=room, batch=256),
        engines=one.engines,
        serving=_engine(one.served, gpus=one.gpus, room=room - 2 * one.served.params, batch=64),
        kv_bytes=(one.served.kv_bytes, one.rollout.kv_bytes),
        lenders=FLEET // 4,
        objectives=one.objectives,
        fleet=FLEET,
        agents=one.agents,
        group=16,
        batch=one.batch,
        valid=one.valid,
        token_us=flops / (one.train_gpus * H100_FLOPS * TRAIN_SHARE) * SECOND_US,
        update_us=4 * SECOND_US,
        pull_us=(OWN_PULL_US, round(FLEET * 2 * one.rollout.params / LINK_BYTES_S * SECOND_US)),
        steps=2,
    )


WAYS: Final[Sequence[Way]] = ("grpo", "dapo", "flow")
LENT: Final[Mapping[str, Callable[[], AgenticWorkload]]] = MappingProxyType(
    {f"rose-{model}-{way}": partial(rose, model, way) for way in WAYS for model in SETTINGS}
)


def compare_lending(
    work: AgenticWorkload,
    *,
    seed: int,
    traffic: Sequence[Request] | None = None,
    policies: Sequence[Sharing] = tuple(Sharing),
) -> Lent:
    """Return what each policy comes to; without traffic it is generated like Azure's.

    Raises:
        PlexError: `internal` if a run never ends.
    """
    requests = Traffic().draw(seconds=TRAFFIC_S, seed=seed) if traffic is None else traffic
    found: Lent = {}
    base = 0.0
    for sharing in policies:
        run = AgenticRun(work, requests, sharing=sharing, seed=seed)
        outcome = run.run()
        speed = outcome.tokens * 1e6 / outcome.elapsed_us
        base = base or speed
        found[sharing.value] = _figures(run, outcome, work.objectives, speedup=speed / base)
    return found


def _figures(
    run: AgenticRun, outcome: AgenticOutcome, objectives: Objectives, *, speedup: float
) -> dict[str, Any]:
    """Return what one policy came to; times of requests in ms.

    Tokens are trained ones, of prompts and answers. The speedup is against the job's own devices
    alone. Objectives are kept if both 99th percentiles are within them; a request beyond one of
    them is late. Harvested is a share of the time in which serving did not step and the guest had
    something to do. The share of prompts counts what was cached.
    """
    seen = latency(run.lenders)
    computed = sum(one.guest.prefilled + one.guest.cached for one in run.devices)
    generated = sum(one.guest.generated for one in run.devices)
    return {
        "sharing": outcome.sharing.value,
        "tokens_per_s": round(outcome.tokens * 1e6 / outcome.elapsed_us, 1),
        "speedup": round(speedup, 3),
        "rollout_s": round(sum(outcome.rollouts_us) / len(outcome.rollouts_us) / 1e6, 1),
        "trajectories": outcome.trajectories,
        "handed_back": outcome.handed_back,
        "requests": seen.requests,
        "ttft_p50_ms": seen.ttft_p50,
        "ttft_p99_ms": seen.ttft_p99,
        "tpot_p50_ms": seen.tpot_p50,
        "tpot_p99_ms": seen.tpot_p99,
        "is_kept": seen.ttft_p99 <= objectives.ttft_us / 1000
        and seen.tpot_p99 <= objectives.tpot_us / 1000,
        "late": seen.late,
        "serving_share": round(_part(run.lenders, "serving_us", run.now_us * len(run.lenders)), 3),
        "harvested": round(
            _part(run.lenders, "guest_us", sum(one.idle_us for one in run.lenders)), 3
        ),
        "prompt_share": round(computed / max(1, computed + generated), 3),
    }


def _part(lenders: Sequence[CoservedDevice], field: str, whole_us: int) -> float:
    return float(sum(getattr(one, field) for one in lenders) / max(1, whole_us))


def lent_json(
    found: Lent, *, preset: str, seed: int, traffic: str = "generated"
) -> dict[str, object]:
    """Return a comparison as JSON."""
    return {"preset": preset, "seed": seed, "traffic": traffic, "policies": found}
