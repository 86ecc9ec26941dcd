"""Deployments that a job asks for: what each is, before the service has it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Final

from plexclient.checks import of_type, real, text, whole
from plexclient.deployment import Deployment
from plexclient.errors import bad_request
from plexclient.ids import JobId, new_deployment_id
from plexclient.specs import (
    ROLES,
    AdamW,
    Elastic,
    LoRA,
    Parallel,
    default_role,
    instances_to_wire,
)
from plexclient.wire.v1 import service_pb2

SEEDING: Final = "-reserved"
"""Ends the name of the deployment that a rollout's engines on training devices are."""

DURABILITIES: Final = ("none", "step")
"""What a deployment goes on from when its processes die: nothing, or its last step."""

RECOMPUTED: Final = ("full", "selective")
"""What of each layer the backward pass computes again: all of it, or its MLP."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A deployment that is asked for; `Job.deploy` says what the fields mean.

    For `Job.deploy_all`, `model` may be another one that is asked for in the same call, before it.

    >>> actor = Declared("actor", model="/models/tiny", backend="megatron", optimizer=AdamW())
    >>> Declared("rollout", model=actor, backend="vllm").name
    'rollout'
    """

    name: str
    _: KW_ONLY
    model: str | Path | Deployment | Declared
    backend: str
    role: str | None = None
    parallel: Parallel = Parallel()  # noqa: RUF009 - frozen
    optimizer: AdamW | None = None
    lora: LoRA | None = None
    dtype: str = "float32"
    seed: int = 0
    micro_batch_tokens: int = 0
    max_model_len: int = 0
    instances: int | Elastic | None = None
    kv_cache_bytes: int = 0
    max_logprob_gap: float = 0.0
    durability: str = "none"
    recompute: str | None = None
    checkpoint_every: int = 0
    keep: int = 3

    def to_wire(self, job_id: JobId) -> service_pb2.CreateDeploymentRequest:
        """Return the request for it.

        Raises:
            PlexError: `bad_request` for what no deployment can be.
        """
        return service_pb2.CreateDeploymentRequest(
            deployment_id=new_deployment_id(job_id, self.name),
            job_id=job_id,
            name=text("name", self.name),
            spec=self._spec(job_id),
        )

    def seeding(self, job_id: JobId) -> service_pb2.CreateDeploymentRequest | None:
        """Return the request for its engines on training devices, if they are a part of it."""
        if not isinstance(self.instances, Elastic) or not self.instances.has_window:
            return None
        alone = replace(self, name=f"{self.name}{SEEDING}", instances=Elastic(reserved=True))
        request = alone.to_wire(job_id)
        request.spec.seeds = new_deployment_id(job_id, self.name)
        return request

    def _trained_on(self) -> int:
        """Return how many devices its weights are trained on, as far as that is known here."""
        if isinstance(self.model, Declared):
            return self.model.parallel.world_size
        if isinstance(self.model, Deployment):
            return Parallel.from_wire(self.model.info.spec.parallel).world_size
        return 1

    def _spec(self, job_id: JobId) -> service_pb2.DeploymentSpec:
        of_type("parallel", self.parallel, Parallel)
        model_kinds = str | Path | Deployment | Declared
        of_type("model", self.model, model_kinds, takes="a directory, or another deployment")
        if self.optimizer is not None:
            of_type("optimizer", self.optimizer, AdamW)
        if self.lora is not None:
            of_type("lora", self.lora, LoRA)
        role = self.role or default_role(self.name, backend=self.backend)
        if role not in ROLES:
            raise bad_request(f"role={role!r}: roles are {', '.join(ROLES)}")
        if self.durability not in DURABILITIES:
            raise bad_request(
                f"durability={self.durability!r}: a deployment has {' or '.join(DURABILITIES)}"
            )
        if self.recompute not in (None, *RECOMPUTED):
            raise bad_request(f"recompute={self.recompute!r}: give {', '.join(RECOMPUTED)} or None")
        num_instances, others = instances_to_wire(role, self.instances)
        elastic = self.instances if isinstance(self.instances, Elastic) else Elastic()
        trains = elastic.reserved and not elastic.has_window
        num_instances = self._trained_on() if trains else num_instances
        kept = whole("keep", self.keep, least=1, most=1 << 20)
        model, source = text("model", str(self.model)), ""
        if isinstance(self.model, Deployment):
            model, source = self.model.info.spec.model, self.model.deployment_id
        elif isinstance(self.model, Declared):
            model, source = "", new_deployment_id(job_id, self.model.name)
        return service_pb2.DeploymentSpec(
            role=role,
            model=model,
            model_deployment_id=source,
            backend=text("backend", self.backend),
            parallel=self.parallel.to_wire(),
            optimizer=self.optimizer.to_wire() if self.optimizer is not None else None,
            lora=self.lora.to_wire() if self.lora is not None else None,
            dtype=text("dtype", self.dtype),
            seed=whole("seed", self.seed, most=2**64 - 1),
            micro_batch_tokens=whole("micro_batch_tokens", self.micro_batch_tokens),
            max_model_len=whole("max_model_len", self.max_model_len),
            num_instances=num_instances,
            instances=others,
            shares_devices=elastic.shared or trains,
            where_it_trains=trains,
            kv_cache_bytes=whole("kv_cache_bytes", self.kv_cache_bytes, most=2**63 - 1),
            max_logprob_gap=real("max_logprob_gap", self.max_logprob_gap, least=0),
            is_durable=self.durability == "step",
            recompute=self.recompute or "",
            checkpoint_every=whole("checkpoint_every", self.checkpoint_every, most=10**9),
            checkpoints_kept=kept if self.checkpoint_every else 0,
        )
