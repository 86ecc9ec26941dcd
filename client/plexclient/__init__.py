"""The plexsvc client: write an RL loop on a CPU machine, run it on shared accelerators.

`connect` → `cluster.job` → `job.deploy` → `forward_backward`, `step`, `sync`, `generate`. Every
call has a blocking form, a future form (`.submit`) and an awaitable form (`.aio`).
"""

from __future__ import annotations

from plexclient.advantages import grpo_advantages
from plexclient.batch import Batch
from plexclient.cluster import Cluster, connect
from plexclient.deployment import Deployment
from plexclient.errors import ErrorCode, PlexError
from plexclient.job import Job
from plexclient.options import ClientOptions
from plexclient.results import Answer, ForwardResult, LossResult, ValueResult
from plexclient.rollouts import Rollout
from plexclient.samples import Delta, Sample, Samples
from plexclient.sampling import SamplingOptions
from plexclient.specs import AdamW, Parallel
from plexclient.tokenizer import Tokenizer
from plexclient.training import Actor, Critic, Reference

__all__ = [
    "Actor",
    "AdamW",
    "Answer",
    "Batch",
    "ClientOptions",
    "Cluster",
    "Critic",
    "Delta",
    "Deployment",
    "ErrorCode",
    "ForwardResult",
    "Job",
    "LossResult",
    "Parallel",
    "PlexError",
    "Reference",
    "Rollout",
    "Sample",
    "Samples",
    "SamplingOptions",
    "Tokenizer",
    "ValueResult",
    "connect",
    "grpo_advantages",
]
