"""Named workloads of rollouts: RLBoost's models on its segments of a spot trace, and fixed counts.

Neither the throughput of the paper's engines nor its sample of the trace was published. Engines and
trainers follow from the sizes of the models (table 4, and 8.2, 14.8 and 32.8 billion parameters)
and the data sheet of the H100 with the shares below. Segments are cuts of two hours of one sample
of half of the nodes of the same trace that have the allocations and preemptions of table 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from benchmarks.rlboost.engine import EngineProfile
from benchmarks.rlboost.workload import LengthModel, RolloutWorkload, Spot, SpotChange, Trainer
from plexsvc.errors import ErrorCode, PlexError

SECOND_US: Final = 1_000_000
GIB: Final = 1 << 30

H100_FLOPS: Final = 989e12
"""bfloat16, dense (data sheet)."""
H100_BYTES_S: Final = 3.35e12
H100_BYTES: Final = 80e9
DECODE_SHARE: Final = 0.7
"""Of the memory bandwidth that decoding reaches."""
PREFILL_SHARE: Final = 0.5
"""Of the floating point rate that prefill reaches."""
TRAIN_SHARE: Final = 0.35
"""Of the floating point rate that FSDP reaches."""
STEP_US: Final = 1_500
"""Of every decoding step: launching it and sampling."""
GPUS_PER_ENGINE: Final = 2
GPUS_PER_NODE: Final = 8

NODE_PRICE: Final = 83.79
"""Of eight H100 on demand, an hour (table 2)."""
SPOT_PRICE: Final = 5.32
"""Of two H100 on the spot market, an hour (table 2)."""
SPOT_LINK_BYTES_S: Final = 50e9 / 8
"""Network of a spot instance (table 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model of table 4."""

    params: float
    layers: int
    kv_heads: int
    head: int = 128
    nodes: int = 1
    """On-demand nodes that train it (section 6.1)."""

    @property
    def kv_bytes(self) -> int:
        """Return what a token of context takes in the KV cache, in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head * 2


MODELS: Final[Mapping[str, ModelSize]] = MappingProxyType(
    {
        "8b": ModelSize(params=8.2e9, layers=32, kv_heads=8),
        "14b": ModelSize(params=14.8e9, layers=48, kv_heads=8),
        "32b": ModelSize(params=32.8e9, layers=64, kv_heads=8, nodes=2),
    }
)

Changes = Sequence[tuple[int, int]]
SEGMENTS: Final[Mapping[str, Changes]] = MappingProxyType(
    {
        "a": (
            *((480, 1), (600, 2), (600, 3), (600, 4), (600, 5), (600, 6), (600, 7), (600, 8)),
            *((600, 9), (600, 10), (720, 11), (1440, -8), (1440, -5), (1560, -11), (1680, -1)),
            *((1800, 12), (1800, 13), (2640, -12), (3000, -10), (4260, -7), (7140, -6)),
        ),
        "b": (
            *((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (720, 7), (1080, -7), (1440, -4)),
            *((1560, 8), (3120, -6), (3120, -5), (3240, -1), (3240, -8), (3480, -3), (3720, 9)),
            *((3960, 10), (4320, 11), (4560, 12), (4920, -12), (5520, -11), (5940, 13)),
            (6960, 14),
        ),
        "c": (
            *((0, 1), (0, 2), (0, 3), (0, 4), (720, 5), (780, 6), (840, -6), (1860, 7)),
            *((2700, -5), (3360, 8), (4500, 9), (6600, 10)),
        ),
    }
)
"""Second, and the node that comes, or goes (negative). Bamboo's g4dn trace (MIT, (c) 2022
UCLASystem), 40 of its 79 nodes, from seconds 0, 8,400 and 21,000 on. On average 6.80, 4.64 and
6.02 nodes, where table 5 has 6.53, 4.58 and 6.06; 13, 8 and 6 come, 8, 9 and 2 go, as there."""


def engine_of(model: ModelSize) -> EngineProfile:
    """Return the profile of a model's engine on two H100."""
    bandwidth = GPUS_PER_ENGINE * H100_BYTES_S * DECODE_SHARE
    rate = GPUS_PER_ENGINE * H100_FLOPS * PREFILL_SHARE
    free = GPUS_PER_ENGINE * H100_BYTES * 0.9 - 2 * model.params
    return EngineProfile(
        fixed_us=STEP_US + 2 * model.params / bandwidth * SECOND_US,
        each_us=2 * model.params / rate * SECOND_US,
        context_us=model.kv_bytes / bandwidth * SECOND_US,
        prefill_us=2 * model.params / rate * SECOND_US,
        kv_tokens=int(free / model.kv_bytes),
        batch=256,
    )


def rlboost(model: str, *, changes: Changes, name: str, most: int | None = None) -> RolloutWorkload:
    """Return a model's job of section 6.1 with spot instances that come and go."""
    size = MODELS[model]
    gpus = size.nodes * GPUS_PER_NODE
    flops = 6 * size.params * 4 / 3  # forward and backward, and forward for logprobs
    planned = [
        SpotChange(at_us=at_s * SECOND_US, slot=f"spot{abs(node)}:0", is_add=node > 0)
        for at_s, node in changes
    ]
    return RolloutWorkload(
        name=name,
        profile=engine_of(size),
        trainer=Trainer(
            engines=gpus // GPUS_PER_ENGINE,
            token_us=flops / (gpus * H100_FLOPS * TRAIN_SHARE) * SECOND_US,
            update_us=4 * SECOND_US,
            wake_us=3 * SECOND_US,
            price=NODE_PRICE * size.nodes,
        ),
        spot=Spot(
            changes=tuple(planned),
            price=SPOT_PRICE,
            start_us=30 * SECOND_US,
            pull_us=round(2 * size.params / SPOT_LINK_BYTES_S * SECOND_US),
            most=most,
        ),
        lengths=LengthModel(median=3500, prompt_sigma=0.6, sample_sigma=0.45, most=14_000),
        prompts=128,
        samples=8,
        prompt_tokens=200,
        micro_batch=16,
        first_window_us=240 * SECOND_US,
        duration_us=7200 * SECOND_US,
    )


def fixed(model: str, *, count: int, name: str) -> RolloutWorkload:
    """Return a job beside so many spot instances that stay (figure 11)."""
    changes = [(0, node + 1) for node in range(count)]
    return rlboost(model, changes=changes, name=name, most=count)


MOST_FIXED: Final = 6

PRESETS: Final[Mapping[str, Callable[[], RolloutWorkload]]] = MappingProxyType(
    {
        name: partial(rlboost, model, changes=changes, name=name)
        for segment, changes in SEGMENTS.items()
        for model in MODELS
        for name in [f"rlboost-{segment}-{model}"]
    }
    | {
        name: partial(fixed, model, count=count, name=name)
        for count in range(1, MOST_FIXED + 1)
        for model in MODELS
        for name in [f"spot-{count}-{model}"]
    }
)


def rollout_preset(name: str) -> RolloutWorkload:
    """Return a named workload.

    Raises:
        PlexError: `bad_request` with the names there are.
    """
    if name not in PRESETS:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"there is no rollout preset {name!r}; there are {', '.join(PRESETS)}",
        )
    return PRESETS[name]()
