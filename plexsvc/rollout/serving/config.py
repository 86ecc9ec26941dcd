"""Configuration of a serving engine, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

from plexsvc.errors import bad_request
from plexsvc.rollout.core.lending import Objectives, Terms, refuse
from plexsvc.rollout.engines.model_dir import ModelDir, read_model_dir
from plexsvc.weights.dtypes import DTYPES

MAX_PORT: Final = 65_535
MAX_GUESTS: Final = 10
"""Of one engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """One serving engine, and its guests if it lends."""

    model: Path
    """Hugging Face directory of the model that is served."""
    name: str
    """What clients ask for as `model`, and its owner calls it by."""
    objectives: Objectives
    socket: Path
    """Unix socket of the owner's switches."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any that is free."""
    max_model_len: int = 0
    """Longest prompt with answer, in tokens; 0: what the model was made for."""
    max_num_seqs: int = 0
    """Requests in one step; 0: the device's default."""
    kv_bytes: int = 256 << 20
    """KV memory of the device, for serving and guests together."""
    memory_bytes: int = 0
    """Memory for weights and KV of all; 0: what the machine has available."""
    guests: tuple[Path, ...] = ()
    """Models whose samples are made in what serving leaves; none: nothing is lent."""
    terms: Terms = field(default_factory=Terms)
    keys_file: Path | None = None
    """The cluster's keys; with them its rollout managers reach each guest as an instance."""
    instances: tuple[str, ...] = ()
    """Where they reach each: HOST:PORT; none: Unix sockets beside the owner's, for this host."""
    price: float = 0.0
    """What jobs pay for a guest, an hour."""
    owner: str = ""
    """The tenant whose engine it is; empty: the cluster's."""
    lend_to: tuple[str, ...] = ()
    """Tenants whose jobs may use it; none: everybody's."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise refuse("name", f"is {self.name!r}; it is one plain name")
        if not 0 <= self.port <= MAX_PORT:
            raise refuse("port", f"is {self.port}; it is one of 0 to {MAX_PORT}")
        if not 0 <= self.price < float("inf"):
            raise refuse("price", f"is {self.price}; it is a number from 0")
        for name in ("kv_bytes", "max_model_len", "max_num_seqs", "memory_bytes"):
            if getattr(self, name) < 0:
                raise refuse(name, f"is {getattr(self, name)}; it is not negative")
        if len(self.guests) > MAX_GUESTS:
            raise refuse("lend_model", f"is given {len(self.guests)} times, {MAX_GUESTS} at most")
        named = [guest.resolve().name for guest in self.guests]
        if len(set(named)) < len(named):
            text = f"names {', '.join(named)}; each directory needs a name of its own"
            raise refuse("lend_model", text)
        if self.instances and len(self.instances) != len(self.guests):
            text = f"is given {len(self.instances)} times, for {len(self.guests)} models to lend to"
            raise refuse("instance", f"{text}; give one for each, or none")

    @property
    def guest_names(self) -> tuple[str, ...]:
        """Return what the cluster calls each guest: by the engine's name, of several by model too.

        Those of the engine `chat` with the guests `small` and `large` are `chat.small` and
        `chat.large`.
        """
        if len(self.guests) == 1:
            return (self.name,)
        return tuple(f"{self.name}.{guest.resolve().name}" for guest in self.guests)


def check_fits(config: ServingConfig, *, available_bytes: int) -> None:
    """Refuse models that do not fit beside each other.

    Raises:
        PlexError: `unknown_model`; `bad_request` with the bytes that are needed and there.
    """
    models = [config.model, *config.guests]
    weights = sum(weight_bytes(read_model_dir(model)) for model in models)
    needed, found = weights + config.kv_bytes, config.memory_bytes or available_bytes
    if needed > found:
        raise bad_request(
            f"memory_bytes: {config.name} needs {needed} bytes ({weights} of weights, "
            f"{config.kv_bytes} of KV cache) and {found} are there; lower kv_bytes, or serve a "
            "smaller model",
            field="memory_bytes",
        )


def weight_bytes(model: ModelDir) -> int:
    """Return what a checkpoint's tensors take."""
    return sum(
        prod(one.shape) * DTYPES[one.dtype].carrier.itemsize for one in model.tensors.values()
    )
