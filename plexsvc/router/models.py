"""Validation of a deployment: its model, parallel degrees and role."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from plexclient.specs import DEVICE, HOST
from plexclient.wire.v1 import common_pb2, service_pb2
from plexsvc import families, paths, sizes
from plexsvc.errors import bad_request
from plexsvc.families import unknown_model
from plexsvc.lora import Lora, is_applied
from plexsvc.paths import CheckedPath
from plexsvc.router.validation import check_hyper
from plexsvc.weights import headers

ROLES_OF_BACKEND: Final[Mapping[str, tuple[str, ...]]] = {
    "megatron": ("actor", "critic", "reference"),
    "fsdp": ("actor", "critic", "reference"),
    "noop": ("actor", "critic", "reference"),
    "vllm": ("rollout",),
}
ELASTIC_KINDS: Final = ("spot", "serving")
"""Kinds of instances that come and go."""
WEIGHTS: Final = re.compile(r".*\.safetensors")
TRAINED_WEIGHTS: Final = re.compile(r"model.*\.safetensors")
"""Files that training backends read."""
SPLITS: Final[Mapping[str, tuple[str, ...]]] = {
    "fsdp": ("dp", "cp"),
    "megatron": ("tp", "pp", "dp", "cp", "ep"),
    "vllm": ("tp",),
}
"""Degrees of each backend that computes."""
MAX_RANKS: Final = 1 << 16
DTYPES: Final = ("", "float32", "bfloat16")
RECOMPUTED: Final = ("", "full", "selective")


def check_weights(place: CheckedPath, table: families.Config, *, backend: str) -> None:
    """Refuse weights that no backend could open: headers are read, tensors are not.

    Raises:
        PlexError: `unknown_model`; `bad_request` for files that cannot be reached.
    """
    wanted = WEIGHTS if backend == "vllm" else TRAINED_WEIGHTS
    names = paths.file_names(place, only=wanted.fullmatch)
    if not names:
        raise unknown_model(place.path, f"the directory has no {wanted.pattern}")
    # Of other families, and of quantized weights, nobody here knows which shapes are right.
    is_known = table.get("model_type") in families.FAMILIES and "quantization_config" not in table
    problem = headers.check_weights(place, names, table if is_known else {})
    if problem:
        raise unknown_model(place.path, f"its weights cannot be opened: {problem}")


def check_spec(spec: service_pb2.DeploymentSpec) -> None:
    """Refuse a spec that contradicts itself, whatever the model.

    Raises:
        PlexError: `bad_request` naming the field, what it holds and what it may hold.
    """
    if spec.backend not in ROLES_OF_BACKEND:
        raise bad_request(
            f"backend {spec.backend!r} is not known; use one of {', '.join(ROLES_OF_BACKEND)}"
        )
    roles = ROLES_OF_BACKEND[spec.backend]
    if spec.role not in roles:
        raise bad_request(
            f"backend {spec.backend!r} cannot run role {spec.role!r}; it runs {', '.join(roles)}"
        )
    if spec.dtype not in DTYPES:
        raise bad_request(f"dtype {spec.dtype!r} is not known; use float32 or bfloat16")
    if spec.max_logprob_gap and spec.role != "actor":
        raise bad_request(f"role {spec.role!r} has no policy loss that max_logprob_gap could bound")
    if spec.recompute not in RECOMPUTED:
        raise bad_request(f"recompute {spec.recompute!r} is not known; use full or selective")
    if spec.recompute and (spec.backend == "noop" or not spec.HasField("optimizer")):
        raise bad_request(
            f"recompute {spec.recompute!r} changes nothing for backend {spec.backend!r} "
            f"{'with' if spec.HasField('optimizer') else 'without'} an optimizer; megatron and "
            "fsdp with one keep activations for a backward pass",
            field="DeploymentSpec.recompute",
        )
    if spec.is_durable and spec.role not in {"actor", "critic"}:
        raise bad_request(
            f"role {spec.role!r} takes no step after which its state could be kept; give "
            "durability='step' to an actor or a critic",
            field="DeploymentSpec.is_durable",
        )
    _check_checkpoints(spec)
    _check_lora(spec)
    _check_instances(spec)
    _check_optimizer(spec)
    _check_degrees(spec)


def check_seeds(spec: service_pb2.DeploymentSpec, served: service_pb2.DeploymentSpec) -> None:
    """Refuse instances that cannot serve the generates of the deployment that they name.

    Raises:
        PlexError: `bad_request` naming the field.
    """
    if served.role != "rollout" or served.shares_devices or served.model != spec.model:
        raise bad_request(
            f"instances of model {spec.model!r} cannot serve generates of {spec.seeds!r}, which is "
            f"of role {served.role!r} and model {served.model!r}"
            f"{' that shares devices' if served.shares_devices else ''}; name a rollout of the "
            "same model with devices of its own",
            field="DeploymentSpec.seeds",
        )


def check_model(spec: service_pb2.DeploymentSpec, directory: Path) -> families.Config:
    """Return a model's configuration; refuse one that the backend does not compute right.

    So are degrees that do not divide it.

    Raises:
        PlexError: `unknown_model`; `bad_request` naming the degree and what it must divide.
    """
    table = families.read(directory)
    if spec.backend in {"fsdp", "megatron"}:
        families.check(table, backend=spec.backend, directory=directory)
    if spec.backend == "megatron":
        _check_layout(spec.parallel, table)
    if spec.backend == "vllm":
        _check_engine(max(1, spec.parallel.tp), table)
    if spec.backend in {"fsdp", "megatron"}:
        _check_heads(max(1, spec.parallel.cp), max(1, spec.parallel.tp), table)
    if spec.HasField("lora"):
        wanted = Lora.from_wire(spec.lora)
        wanted.check(table)
        if spec.role == "rollout" and not is_applied(wanted, table):
            spec.ClearField("lora")  # an engine of its own merges them
    return table


def _check_heads(cp: int, tp: int, table: families.Config) -> None:
    """Refuse ranks that cannot share out what heads each tensor rank has."""
    if not families.shares_heads(table, cp, tp=tp):
        heads = table.get("num_attention_heads", 0)
        groups = table.get("num_key_value_heads") or heads
        raise bad_request(
            f"parallel cp = {cp} ranks cannot share out {heads // tp} attention heads and "
            f"{groups // tp} key-value heads; choose a divisor of the first that divides the "
            "second, or that the second divides",
            degree="cp",
        )


def _check_layout(parallel: common_pb2.Parallel, table: families.Config) -> None:
    heads, experts = table.get("num_attention_heads", 0), families.num_experts(table)
    units = table.get("intermediate_size", parallel.tp)
    if experts and parallel.tp > 1 and not (parallel.ep > 1 and parallel.sequence_parallel):
        raise bad_request(
            f"parallel tp = {parallel.tp} with a model of {experts} experts, each of which is "
            "whole on its rank; share them out by ep above 1, and give sequence_parallel=True",
            degree="tp",
        )
    _check_divides(
        ("tp", parallel.tp, "attention heads", heads),
        ("tp", parallel.tp, "key-value heads", table.get("num_key_value_heads") or heads),
        *([] if experts else [("tp", parallel.tp, "intermediate units", units)]),
        ("ep", parallel.ep, "experts", experts),
        ("pp", parallel.pp, "layers", table.get("num_hidden_layers", 0)),
    )


def _check_engine(tp: int, table: families.Config) -> None:
    """Refuse tensor ranks of vLLM that a model cannot be shared out over."""
    heads = table.get("num_attention_heads", tp)
    groups = table.get("num_key_value_heads") or heads
    _check_divides(
        ("tp", tp, "attention heads", heads),
        ("tp", tp, "intermediate units", table.get("intermediate_size", tp)),
        ("tp", tp, "intermediate units of an expert", table.get("moe_intermediate_size", tp)),
    )
    # Of fewer groups than ranks, equally many ranks have each.
    if groups % tp and tp % groups:
        raise bad_request(
            f"parallel tp = {tp} ranks cannot share out the model's {groups} key-value heads; "
            "choose a divisor of these, or a multiple",
            degree="tp",
        )


def _check_divides(*degrees: tuple[str, int, str, int]) -> None:
    for degree, value, what, count in degrees:
        if value > 1 and (count == 0 or count % value):
            raise bad_request(
                f"parallel {degree} = {value} does not divide the model's {count} {what}; choose a "
                "divisor",
                degree=degree,
            )


def _check_checkpoints(spec: service_pb2.DeploymentSpec) -> None:
    if spec.checkpoint_every and not spec.is_durable:
        raise bad_request(
            f"checkpoint_every={spec.checkpoint_every} writes what durability='step' keeps; ask "
            "for that, too",
            field="DeploymentSpec.checkpoint_every",
        )
    if bool(spec.checkpoint_every) != bool(spec.checkpoints_kept):
        raise bad_request(
            f"checkpoint_every={spec.checkpoint_every} with keep={spec.checkpoints_kept}; keep 1 "
            "or more of the checkpoints that are made",
            field="DeploymentSpec.checkpoints_kept",
        )


def _check_lora(spec: service_pb2.DeploymentSpec) -> None:
    if not spec.HasField("lora"):
        return
    if spec.role == "rollout" and spec.lora.rank:  # an engine for what such an actor publishes
        return
    what = f"{spec.backend!r} {'with' if spec.HasField('optimizer') else 'without'} an optimizer"
    if spec.backend != "fsdp" or spec.role != "actor" or not spec.HasField("optimizer"):
        raise bad_request(
            f"lora of role {spec.role!r} on backend {what}; adapters are trained by an actor on "
            "backend 'fsdp' with an optimizer",
            field="DeploymentSpec.lora",
        )
    if spec.lora.rank < 1 or not 0 < spec.lora.alpha < math.inf:
        raise bad_request(
            f"lora with rank {spec.lora.rank} and alpha {spec.lora.alpha}; both are above 0",
            field="LoRA.rank",
        )


def _check_instances(spec: service_pb2.DeploymentSpec) -> None:
    kinds = [one.kind for one in spec.instances]
    if kinds and spec.role != "rollout":
        raise bad_request(f"role {spec.role!r} has no instances; only a rollout does")
    if spec.shares_devices and (kinds or spec.role != "rollout"):
        raise bad_request(
            f"role {spec.role!r} with instances of kind {kinds} shares no devices; a rollout does "
            "whose instances are all dedicated",
            field="DeploymentSpec.shares_devices",
        )
    if spec.where_it_trains and not spec.shares_devices:
        raise bad_request(
            "instances where their job trains take turns with it; say that they share devices",
            field="DeploymentSpec.where_it_trains",
        )
    if spec.parallel.tp > 1 and spec.role == "rollout" and (kinds or spec.shares_devices):
        raise bad_request(
            f"parallel tp = {spec.parallel.tp} of a rollout with instances "
            f"{f'of kind {kinds}' if kinds else 'that share devices'}; engines of several tensor "
            "ranks are dedicated and do not sleep: ask for a number of instances, or for tp = 1",
            field="DeploymentSpec.parallel",
        )
    if spec.seeds and not spec.where_it_trains:
        raise bad_request(
            "instances that serve another deployment's generates for a seeding window live where "
            "their job trains; say so, or leave `seeds` out",
            field="DeploymentSpec.seeds",
        )
    for one in spec.instances:
        if one.kind not in ELASTIC_KINDS or kinds.count(one.kind) > 1:
            raise bad_request(
                f"instances of kind {one.kind!r}; give each of {', '.join(ELASTIC_KINDS)} once",
                field="InstanceRange.kind",
            )
        if one.least > one.most:
            raise bad_request(
                f"{one.least} to {one.most} instances of kind {one.kind}; the first is the least",
                field="InstanceRange.least",
            )


def _check_degrees(spec: service_pb2.DeploymentSpec) -> None:
    wire = spec.parallel
    degrees = {"tp": wire.tp, "pp": wire.pp, "dp": wire.dp, "cp": wire.cp, "ep": wire.ep}
    if math.prod(max(1, degrees[name]) for name in degrees if name != "ep") > MAX_RANKS:
        raise bad_request(f"parallel {degrees} makes more ranks than any job may have: {MAX_RANKS}")
    only = SPLITS.get(spec.backend)
    wide = [name for name, value in degrees.items() if value > 1]
    if only is not None and not set(wide).issubset(only):
        got = ", ".join(f"{name}={degrees[name]}" for name in wide)
        raise bad_request(
            f"backend {spec.backend!r} got parallel {got}; "
            f"it splits over {' and '.join(only)}"
            f"{'; ask for more instances' if spec.backend == 'vllm' else ''}"
        )
    copies = max(1, wire.tp) * max(1, wire.dp) * max(1, wire.cp)
    if copies % max(1, wire.ep):
        raise bad_request(
            f"parallel ep = {wire.ep} does not divide tp * dp * cp = {copies}: each group of ep "
            "such ranks shares out the experts; choose a divisor",
            degree="ep",
        )
    if wire.sequence_parallel and (wire.tp <= 1 or spec.role == "rollout"):
        raise bad_request(
            "sequence_parallel needs tp above 1, of a training backend; raise tp or turn it off"
        )
    if wire.distributed_optimizer and (
        spec.backend != "megatron" or copies == 1 or not spec.HasField("optimizer")
    ):
        raise bad_request(
            f"distributed_optimizer shares out the optimizer of dp * cp ranks on megatron; this is "
            f"backend {spec.backend!r} with dp * cp = {copies} "
            f"{'and' if spec.HasField('optimizer') else 'without'} an optimizer. Turn it off"
            f"{': fsdp shares out everything' if spec.backend == 'fsdp' else ''}",
            field="Parallel.distributed_optimizer",
        )


def _check_optimizer(spec: service_pb2.DeploymentSpec) -> None:
    if not spec.HasField("optimizer"):
        return
    if spec.role not in {"actor", "critic"}:
        raise bad_request(f"role {spec.role!r} takes no optimizer; deploy it without one")
    if spec.optimizer.kind not in {"", "adamw"}:
        raise bad_request(f"optimizer {spec.optimizer.kind!r} is not known; use adamw")
    hyper = {
        field.name: float(value)
        for field, value in spec.optimizer.ListFields()
        if field.name not in {"kind", "on"}
    }
    check_hyper(hyper)
    _check_place(spec)


def _check_place(spec: service_pb2.DeploymentSpec) -> None:
    """Refuse an optimizer in a place where it cannot be."""
    place = spec.optimizer.on
    if spec.optimizer.HasField("on") and place not in {DEVICE, HOST}:
        raise bad_request(
            f"optimizer on {place!r} is not known; use {DEVICE} or {HOST}", field="Optimizer.on"
        )
    found = sizes.steps_on_devices(
        spec.backend,
        has_lora=spec.HasField("lora"),
    )
    if place == HOST and found:
        raise bad_request(
            f"optimizer on {HOST!r} was asked with {found}, which steps on devices alone; leave "
            f"on={HOST!r} out, or use it without that on fsdp or megatron",
            field="Optimizer.on",
        )
