"""Deployment specifications: parallel layout, optimizer, role and kind of instance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final

from plexclient.checks import real, whole
from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2, service_pb2

ROLES: Final = ("actor", "critic", "reference", "rollout")
INSTANCE_KINDS: Final = {
    "reserved": service_pb2.INSTANCE_KIND_RESERVED,
    "dedicated": service_pb2.INSTANCE_KIND_DEDICATED,
    "spot": service_pb2.INSTANCE_KIND_SPOT,
    "serving": service_pb2.INSTANCE_KIND_SERVING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Degrees of parallelism; the world size is `tp * pp * dp * cp`."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep"):
            whole(f"Parallel: {name}", getattr(self, name), least=1)

    @property
    def world_size(self) -> int:
        """Return how many ranks the layout has."""
        return self.tp * self.pp * self.dp * self.cp

    def to_wire(self) -> common_pb2.Parallel:
        """Return the wire form."""
        return common_pb2.Parallel(**asdict(self))

    @classmethod
    def from_wire(cls, wire: common_pb2.Parallel) -> Parallel:
        """Return the layout in `wire`, where a degree of 0 reads as 1."""
        given = {field.name: value for field, value in wire.ListFields()}
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """AdamW's hyper-parameters; each may change with every `step`. `clip_grad_norm` 0 is off.

    Raises:
        PlexError: `bad_request` for a number that AdamW cannot take.
    """

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "beta1", "beta2", "weight_decay", "clip_grad_norm"):
            real(f"AdamW: {name}", getattr(self, name), least=0)
        if real("AdamW: eps", self.eps) <= 0:
            raise PlexError(ErrorCode.BAD_REQUEST, f"AdamW: eps={self.eps!r}: it must be above 0")

    def to_wire(self) -> service_pb2.Optimizer:
        """Return the wire form."""
        return service_pb2.Optimizer(kind="adamw", **asdict(self))

    @classmethod
    def from_wire(cls, wire: service_pb2.Optimizer) -> AdamW:
        """Return the numbers in `wire` as they are; only `eps`, which must not be 0, has a default.

        With an eps of 0, weights without gradients would turn to NaN.
        """
        given = {field.name: getattr(wire, field.name) for field in fields(cls)}
        if not wire.eps:
            del given["eps"]
        return cls(**given)


def default_role(name: str, *, backend: str) -> str:
    """Return the role of a deployment that states none: its name if that is one, else by backend.

    >>> default_role("critic", backend="megatron"), default_role("policy", backend="vllm")
    ('critic', 'rollout')
    """
    if name in ROLES:
        return name
    return "rollout" if backend == "vllm" else "actor"


def instance_kind(kind: str) -> service_pb2.InstanceKind:
    """Return the wire's instance kind called `kind`.

    Raises:
        PlexError: `bad_request` for an unknown one.
    """
    if kind not in INSTANCE_KINDS:
        raise PlexError(
            ErrorCode.BAD_REQUEST, f"kind={kind!r}: instances are {', '.join(INSTANCE_KINDS)}"
        )
    return INSTANCE_KINDS[kind]
