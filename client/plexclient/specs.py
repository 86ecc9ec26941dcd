"""Deployment specifications: parallel layout, optimizer, role and kinds of instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

from plexclient.checks import real, whole
from plexclient.errors import bad_request
from plexclient.wire.v1 import common_pb2, service_pb2

ROLES: Final = ("actor", "critic", "reference", "rollout")
MAX_INSTANCES: Final = 1024
MAX_LORA_RANK: Final = 1 << 16
ALL_LINEAR: Final = "all-linear"
DEVICE: Final = "device"
HOST: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Degrees of parallelism; the world size is `tp * pp * dp * cp`.

    The `cp` ranks of each of `dp` replicas share out the tokens of a micro-batch, wherever its
    sequences end, and in attention the heads: `cp` divides their number (a tensor rank's), and
    divides that of key-value heads or is a multiple of it. By `distributed_optimizer=True` each of
    `dp * cp` ranks on megatron holds an even share of the moments and float32 masters (ZeRO-1)
    instead of all of them. `ep`, a divisor of `tp * dp * cp`, shares out the experts of a model
    over so many of these ranks: each is whole on its rank.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False

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
    """AdamW's hyper-parameters, each of which may change with every `step`, and where it steps.

    Built-in losses are sums over tokens, so a gradient's norm grows with the batch: nothing is
    clipped unless `clip_grad_norm`, which is in units of that sum, is above 0. Weight decay is
    decoupled (`p -= lr * weight_decay * p`) and spares vectors, that is norms and biases, unless
    `decay_vectors`.

    By `on="host"` moments and float32 masters stay in host memory, where processors make the step:
    a device holds parameters and gradients alone, and is free for others meanwhile.

    Raises:
        PlexError: `bad_request` for a number that AdamW cannot take, and for another place.
    """

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_grad_norm: float = 0.0
    decay_vectors: bool = False
    on: str = DEVICE

    def __post_init__(self) -> None:
        if self.on not in (DEVICE, HOST):
            raise bad_request(f"AdamW: on={self.on!r}: give {DEVICE!r} or {HOST!r}")
        for name in ("lr", "beta1", "beta2", "weight_decay", "clip_grad_norm"):
            real(f"AdamW: {name}", getattr(self, name), least=0)
        if real("AdamW: eps", self.eps) <= 0:
            raise bad_request(f"AdamW: eps={self.eps!r}: it must be above 0")

    def to_wire(self) -> service_pb2.Optimizer:
        """Return the wire form."""
        given = asdict(self)
        if self.on == DEVICE:  # as clients say that know no other place
            del given["on"]
        return service_pb2.Optimizer(kind="adamw", **given)

    @classmethod
    def from_wire(cls, wire: service_pb2.Optimizer) -> AdamW:
        """Return the numbers in `wire`; those that are not there take their defaults."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(wire, name) for name in names if wire.HasField(name)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRA:
    """Adapters that are trained while the model stays as it is.

    Each linear layer W that is a target gets A (`rank` rows, drawn from the deployment's seed) and
    B (zeros), both float32, and computes `W x + alpha / rank * B A x`. `targets` are names as
    `q_proj`, or `"all-linear"` for those of every layer. With `unembedding` that has adapters, too,
    unless the model takes its embedding's matrix for it.

    Raises:
        PlexError: `bad_request` for a number or name that no adapter can have.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] | list[str] = ALL_LINEAR
    unembedding: bool = False

    def __post_init__(self) -> None:
        whole("LoRA: rank", self.rank, least=1, most=MAX_LORA_RANK)
        if real("LoRA: alpha", self.alpha) <= 0:
            raise bad_request(f"LoRA: alpha={self.alpha!r}: it must be above 0")
        if self.targets != ALL_LINEAR and (isinstance(self.targets, str) or not self.targets):
            raise bad_request(
                f"LoRA: targets={self.targets!r}: give {ALL_LINEAR!r}, or a list of names as q_proj"
            )

    def to_wire(self) -> service_pb2.LoRA:
        """Return the wire form."""
        named = () if self.targets == ALL_LINEAR else sorted(set(self.targets))
        return service_pb2.LoRA(
            rank=self.rank, alpha=self.alpha, targets=named, unembedding=bool(self.unembedding)
        )


def default_role(name: str, *, backend: str) -> str:
    """Return the role of a deployment that states none: its name if that is one; vllm has but one.

    >>> default_role("critic", backend="megatron"), default_role("policy", backend="vllm")
    ('critic', 'rollout')

    Raises:
        PlexError: `bad_request` when neither tells.
    """
    if name in ROLES:
        return name
    if backend == "vllm":
        return "rollout"
    raise bad_request(
        f"deployment {name!r} has no role, and its name is none of {', '.join(ROLES)}; say role=, "
        'e.g. role="actor"'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Rollout instances of several kinds: so many dedicated ones, and others that come and go.

    `spot=(0, 8)`: at most 8 spot instances while there are devices for them; a job below its first
    number gets one before a job that is not. `serving=(0, 4)`: guests of at most 4 serving engines
    that are lent. `price={"spot": 2.5}`: at most 2.5 for an instance an hour, in the unit of the
    cluster; without one, whatever is asked.

    `shared=True`: its instances, all dedicated, share their devices in time with those of others
    that say so: where everybody's cycle is predicted to keep its bound and, while cycles are not
    known, where no device is idle. They sleep while others generate, and wake with the weights that
    come next; a generate is never cut. It may wait for others' generates, and sessions are refused.
    By `reserved=True` each device that its own job trains on has an instance, which takes turns
    with the training: no rollout device is needed. With others beside (`reserved=True,
    dedicated=1`) those on training devices sample for a seeding window at the start of each
    generate, and hand over to the others what is not finished then, so that `micro_batches` are
    trained on while the rest is generated.

    Raises:
        PlexError: `bad_request` for numbers that cannot be and kinds that are not known.
    """

    dedicated: int | None = None
    """None: one, or none by `reserved=True`."""
    spot: tuple[int, int] = (0, 0)
    serving: tuple[int, int] = (0, 0)
    price: Mapping[str, float] = field(default_factory=dict)
    shared: bool = False
    reserved: bool = False

    def __post_init__(self) -> None:
        if self.dedicated is not None:
            whole("Elastic: dedicated", self.dedicated, least=1, most=MAX_INSTANCES)
        for kind, asked in self._asked().items():
            try:
                first, last = asked
            except (TypeError, ValueError):
                text = f"Elastic: {kind}={asked!r}: give (least, most), e.g. (0, 8)"
                raise bad_request(text) from None
            least = whole(f"Elastic: {kind}[0]", first, most=MAX_INSTANCES)
            whole(f"Elastic: {kind}[1]", last, least=least, most=MAX_INSTANCES)
        for kind, price in self.price.items():
            if kind not in self._asked():
                kinds = ", ".join(self._asked())
                raise bad_request(f"Elastic: price of {kind!r}: instances with a price are {kinds}")
            real(f"Elastic: price[{kind!r}]", price, least=0)
        if self.shared and (self.reserved or self.to_wire()):
            raise bad_request(
                "Elastic: shared=True: all its instances are dedicated ones, which sleep"
            )
        if self.reserved and self.to_wire() and self.dedicated is None:
            text = "others come and go beside one that stays; give dedicated=1"
            raise bad_request(f"Elastic: reserved=True with instances that come and go: {text}")

    @property
    def has_window(self) -> bool:
        """Whether training devices generate for a seeding window, beside others."""
        return self.reserved and self.dedicated is not None

    def to_wire(self) -> list[service_pb2.InstanceRange]:
        """Return the wire form of what is not dedicated."""
        return [
            service_pb2.InstanceRange(kind=kind, least=least, most=most, price=self.price.get(kind))
            for kind, (least, most) in self._asked().items()
            if most
        ]

    def _asked(self) -> dict[str, tuple[int, int]]:
        return {"spot": self.spot, "serving": self.serving}


def instances_to_wire(
    role: str, instances: int | Elastic | None
) -> tuple[int, list[service_pb2.InstanceRange]]:
    """Return how many dedicated instances are asked for, and which others; only rollouts have any.

    Raises:
        PlexError: `bad_request` for a number that cannot be, and for instances of another role.
    """
    if role != "rollout":
        if instances is not None:
            raise bad_request(
                f"instances={instances!r}: only rollouts have some, and this is: {role}"
            )
        return 0, []
    if isinstance(instances, Elastic):
        return 1 if instances.dedicated is None else instances.dedicated, instances.to_wire()
    asked = 1 if instances is None else instances
    return whole("instances", asked, least=1, most=MAX_INSTANCES), []
