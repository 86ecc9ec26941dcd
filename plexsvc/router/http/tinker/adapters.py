"""Adapters by the SDK's `LoraConfig`: their rank, and which layers of a base model have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import bad_request

BACKEND: Final = "fsdp"
"""What trains adapters, whatever trains the base model whole."""
ALPHA: Final = 32.0
"""The SDK's own, for every rank."""
ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP: Final = ("gate_proj", "up_proj", "down_proj")
LAYERS: Final = ("train_attn", "train_mlp", "train_unembed")
"""The parts of a model by which a `LoraConfig` says what it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A model's adapters; `train_unembed` counts where the embedding has another matrix."""

    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False

    @property
    def key(self) -> str:
        """Return what tells them from adapters of other shapes."""
        layers = "a" * self.train_attn + "m" * self.train_mlp + "u" * self.train_unembed
        return f"{self.rank}{layers}"

    def to_wire(self) -> pb.LoRA:
        """Return what a deployment trains."""
        chosen = [*ATTENTION * self.train_attn, *MLP * self.train_mlp]
        is_all = self.train_attn and self.train_mlp
        return pb.LoRA(
            rank=self.rank,
            alpha=ALPHA,
            targets=() if is_all else chosen,
            unembedding=self.train_unembed,
        )


def read(lora: Any) -> Adapter:
    """Return the adapters that a `LoraConfig` asks for.

    Raises:
        PlexError: `bad_request`.
    """
    rank = lora.get("rank") if isinstance(lora, dict) else None
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank < 2**16:
        raise bad_request(
            f"lora_config.rank={rank!r:.80}: give 0 to {2**16 - 1}", field="lora_config"
        )
    found = Adapter(
        rank=rank,
        train_attn=lora.get("train_attn") is not False,
        train_mlp=lora.get("train_mlp") is not False,
        train_unembed=lora.get("train_unembed") is not False,
    )
    if not (found.train_attn or found.train_mlp):
        raise bad_request(
            "lora_config has neither train_attn nor train_mlp: adapters of the unembedding alone "
            "are not offered",
            field="lora_config",
        )
    return found


def kept(adapter: Adapter | None) -> dict[str, Any] | None:
    """Return what a record has of adapters."""
    return None if adapter is None else asdict(adapter)


def of(record: Mapping[str, Any] | None) -> Adapter | None:
    """Return the adapters in a record."""
    return None if record is None else Adapter(**record)


def told(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the SDK is told of adapters, or of a model that has none."""
    if record is None:
        # Older SDKs make a model of a name's kind by it: rank 0 is trained whole.
        layers = dict.fromkeys(LAYERS, True)
        return {"is_lora": False, "lora_rank": 0, **layers}
    layers = {name: record.get(name, False) for name in LAYERS}
    return {"is_lora": True, "lora_rank": record["rank"], **layers}
