"""Specifications of rank processes, and the facts of a model that they start from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from plexclient.specs import AdamW, Parallel
from plexclient.wire.v1 import node_pb2, service_pb2
from plexsvc import families
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.families import MODEL_FILES
from plexsvc.lora import Lora, engine_rank
from plexsvc.paths import CheckedPath, view
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, WpgRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredModel:
    """What the model directory says before anything is loaded."""

    vocab_size: int
    max_sequence_length: int
    files: tuple[str, ...]
    config: families.Config
    """Its `config.json`."""


def read_model(spec: service_pb2.DeploymentSpec) -> DeclaredModel:
    """Return what `config.json` of a model directory says; zeros without a model.

    Raises:
        PlexError: `unknown_model` when the directory or its `config.json` cannot be read.
    """
    if not spec.model:
        return DeclaredModel(vocab_size=0, max_sequence_length=0, files=(), config={})
    place = CheckedPath(path=Path(spec.model), root=Path(spec.model_root))
    with view(place, only=MODEL_FILES.__contains__) as directory:
        config = families.read(directory)
        return DeclaredModel(
            vocab_size=config.get("vocab_size", 0),
            max_sequence_length=config.get("max_position_embeddings", 0),
            files=tuple(name for name in MODEL_FILES if (directory / name).is_file()),
            config=config,
        )


def proc_spec(
    wpg: WpgRecord,
    *,
    rank: int,
    host: node_pb2.NodeDescription,
    rendezvous: str,
    epoch: int,
    device_bytes: int,
    config: SchedulerConfig,
) -> node_pb2.ProcSpec:
    """Return the process of one rank on a device with a budget of `device_bytes`."""
    deployment = wpg.deployment
    common: dict[str, object] = {
        "wpg_id": wpg.wpg_id,
        "rank": rank,
        "incarnation": wpg.incarnation,
        "scheduler_epoch": epoch,
        "tenant": deployment.tenant,
        "job_id": deployment.job_id,
        "deployment_id": deployment.deployment_id,
        "model": deployment.spec.model,
        "model_root": deployment.spec.model_root,
        "dtype": deployment.spec.dtype,
        "seed": deployment.spec.seed,
        "data_socket": host.data_socket,
        "node_id": host.node_id,
        "device_index": wpg.places[rank].device,
    }
    rollout, shares = wpg.is_rollout, ""
    if rollout:
        more = _instance_config(deployment, config)
        kinds = {device.index: device.kind for device in host.devices}
        if kinds.get(wpg.places[rank].device) == "rollout":  # else the pool's, of which it has all
            more |= _adapters_config(deployment, config)
        if "lora_rank" in more:
            keys = ("model", "model_root", "dtype")
            shares = json.dumps([*(common[key] for key in keys), *more.items()])
        more |= {"device_bytes": device_bytes}
    else:
        more = _worker_config(deployment)
        more |= {"world_size": len(wpg.places), "rendezvous": rendezvous}
    return node_pb2.ProcSpec(
        proc_id=f"{wpg.wpg_id}/{rank}",
        image="rollout" if rollout else "train",
        config_json=json.dumps(common | more),
        job_id=deployment.job_id,
        tenant=deployment.tenant,
        wpg_id=wpg.wpg_id,
        rank=rank,
        shares=shares,
    )


def rendezvous_of(wpg: WpgRecord, hosts: list[node_pb2.NodeDescription]) -> str:
    """Return where the ranks of a WPG meet: a file on one host, a port of rank 0's across hosts.

    Raises:
        PlexError: `no_placement` when one of several hosts has no address.
    """
    if len({host.hostname for host in hosts}) == 1:
        return f"file://{hosts[0].runtime_dir}/{wpg.wpg_id}-{wpg.incarnation}.rdzv"
    hidden = sorted({host.node_id for host in hosts if not host.hostname})
    if hidden:
        raise PlexError(
            ErrorCode.NO_PLACEMENT,
            f"ranks of {wpg.wpg_id} on several hosts cannot meet: {', '.join(hidden)} listens on "
            "Unix sockets alone; give it an `address` in the cluster's file (`listen` of an agent)",
        )
    _, epoch, number = wpg.wpg_id.split("-")
    # Below the ports that systems hand out; of one service, no two of 10,000 WPGs have the same.
    port = 20_000 + (2_503 * int(epoch) + int(number)) % 10_000
    return f"tcp://{hosts[0].hostname}:{port}"


def _worker_config(deployment: DeploymentRecord) -> dict[str, object]:
    spec = deployment.spec
    optimizer = AdamW.from_wire(spec.optimizer) if spec.HasField("optimizer") else None
    return {
        "role": spec.role,
        "backend": spec.backend,
        "parallel": asdict(Parallel.from_wire(spec.parallel)),
        "optimizer": asdict(optimizer) if optimizer else None,
        "lora": asdict(Lora.from_wire(spec.lora)) if spec.HasField("lora") else None,
        "base": spec.model,
        "max_logprob_gap": spec.max_logprob_gap,
        "recompute": spec.recompute,
        "micro_batch_tokens": spec.micro_batch_tokens or None,
    }


def _instance_config(deployment: DeploymentRecord, config: SchedulerConfig) -> dict[str, object]:
    spec = deployment.spec
    return {
        "max_model_len": deployment.max_sequence_length,
        "kv_cache_bytes": spec.kv_cache_bytes or config.kv_cache_bytes,
        "max_num_seqs": config.max_num_seqs,
        "tp": max(1, spec.parallel.tp),
    }


def _adapters_config(deployment: DeploymentRecord, config: SchedulerConfig) -> dict[str, object]:
    """Return what an engine is to have for adapters, if the deployment may share one."""
    spec = deployment.spec
    rank = engine_rank(spec.lora.rank)
    if not rank or spec.shares_devices or not config.adapter_bytes:
        return {}
    return {"lora_rank": rank, "adapter_bytes": config.adapter_bytes}
