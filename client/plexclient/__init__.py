"""The plexsvc client: write an RL loop on a CPU machine, run it on shared accelerators.

`connect` → `cluster.job` → `job.deploy` → `forward_backward`, `step`, `sync`, `generate`. Every
call has a blocking form, a future form (`.submit`) and an awaitable form (`.aio`).

The public names are imported when they are first used: the service shares this package's ids,
errors and messages, and its processes that fork must not have gRPC loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plexclient.advantages import grpo_advantages
    from plexclient.batch import Batch
    from plexclient.cluster import Cluster, connect
    from plexclient.declared import Declared
    from plexclient.deployment import Deployment
    from plexclient.errors import ErrorCode, PlexError
    from plexclient.job import Job
    from plexclient.options import ClientOptions
    from plexclient.programs import Stage
    from plexclient.results import Answer, ForwardResult, LossResult, ValueResult
    from plexclient.rollouts import Rollout
    from plexclient.samples import Delta, Sample, Samples
    from plexclient.sampling import SamplingOptions
    from plexclient.scores import Score, Scores
    from plexclient.specs import AdamW, Elastic, LoRA, Parallel
    from plexclient.tokenizer import Tokenizer
    from plexclient.training import Actor, Critic, Reference
    from plexclient.turns import TurnSession

__all__ = [
    "Actor",
    "AdamW",
    "Answer",
    "Batch",
    "ClientOptions",
    "Cluster",
    "Critic",
    "Declared",
    "Delta",
    "Deployment",
    "Elastic",
    "ErrorCode",
    "ForwardResult",
    "Job",
    "LoRA",
    "LossResult",
    "Parallel",
    "PlexError",
    "Reference",
    "Rollout",
    "Sample",
    "Samples",
    "SamplingOptions",
    "Score",
    "Scores",
    "Stage",
    "Tokenizer",
    "TurnSession",
    "ValueResult",
    "connect",
    "grpo_advantages",
]

_MODULES = {
    "advantages": ("grpo_advantages",),
    "batch": ("Batch",),
    "cluster": ("Cluster", "connect"),
    "declared": ("Declared",),
    "deployment": ("Deployment",),
    "errors": ("ErrorCode", "PlexError"),
    "job": ("Job",),
    "options": ("ClientOptions",),
    "programs": ("Stage",),
    "results": ("Answer", "ForwardResult", "LossResult", "ValueResult"),
    "rollouts": ("Rollout",),
    "samples": ("Delta", "Sample", "Samples"),
    "sampling": ("SamplingOptions",),
    "scores": ("Score", "Scores"),
    "specs": ("AdamW", "Elastic", "LoRA", "Parallel"),
    "tokenizer": ("Tokenizer",),
    "training": ("Actor", "Critic", "Reference"),
    "turns": ("TurnSession",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def _load(name: str) -> Any:
    """Import the module a public name lives in, at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # or every misspelt name would pass the type checker
    __getattr__ = _load


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
