"""LoRA adapters: what they attach to, how PEFT names them, and PEFT's configuration of them.

An adapter of a linear layer W [out, in] is A [rank, in] and B [out, rank]; it adds
`alpha / rank * B A` to W. `SCALE` is that factor as one element, kept and published beside them, so
that whoever reads a version can merge it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexclient.wire.v1 import service_pb2, statemanager_pb2
from plexsvc import families, paths
from plexsvc.errors import ErrorCode, PlexError, bad_request

PREFIX: Final = "base_model.model."
"""Begins the name of every tensor of a PEFT checkpoint."""
SCALE_KIND: Final = "scale"
SCALE_NAME: Final = "lora"
SCALE: Final = f"{SCALE_KIND}/{SCALE_NAME}"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
CONFIG_FILE: Final = "adapter_config.json"
MAX_CONFIG_BYTES: Final = 1 << 20

ENGINE_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that an engine for adapters may have: those of vLLM."""

_APPLIED: Final = frozenset({"qwen2", "qwen3", "llama", "mistral"})
"""Families whose adapters an engine applies; into others they are merged."""
_NEEDED: Final = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OTHERWISE: Final = ("use_rslora", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern")
"""What makes PEFT compute something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A deployment's adapters."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    """Names of linear layers; empty: all of every layer."""
    unembedding: bool = False
    """Whether the unembedding has adapters, too, unless the embedding is its matrix."""

    @property
    def scale(self) -> float:
        """Return what `B A x` is multiplied by."""
        return self.alpha / self.rank

    @classmethod
    def from_wire(cls, wire: service_pb2.LoRA) -> Lora:
        """Return the adapters in `wire`."""
        return cls(
            rank=wire.rank,
            alpha=wire.alpha,
            targets=tuple(wire.targets),
            unembedding=wire.unembedding,
        )

    def adapts(self, linear: str) -> bool:
        """Whether the linear layer of this name, such as `layers.0.mlp.up_proj`, is a target."""
        return not self.targets or linear.rpartition(".")[2] in self.targets

    def elements(self, config: Mapping[str, Any]) -> int:
        """Return how many numbers the adapters of a model have."""
        shapes = [shape for name, shape in linears(config).items() if self.adapts(name)]
        each = int(config["num_hidden_layers"]) * sum(map(sum, shapes))
        return self.rank * (each + sum(self.head(config)))

    def head(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the sides of the unembedding, (out, in), if it has adapters."""
        if not self.unembedding or config.get("tie_word_embeddings", False):
            return ()
        return int(config["vocab_size"]), int(config["hidden_size"])

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse adapters that the model of this `config.json` cannot have.

        Raises:
            PlexError: `bad_request` naming the field.
        """
        if missing := [key for key in _NEEDED if not config.get(key)]:
            raise bad_request(f"lora: the model's config.json lacks {', '.join(missing)}")
        if experts := [key for key in families.EXPERTS if key in config]:
            raise bad_request(
                f"lora: the model has experts ({experts[0]} = {config[experts[0]]}), which no "
                "adapter is computed for; train all of it, or give a dense model",
                field="DeploymentSpec.lora",
            )
        known = linears(config)
        if unknown := sorted(set(self.targets) - known.keys()):
            raise bad_request(
                f"lora.targets: this model has no linear layers {', '.join(unknown)}; it has "
                f"{', '.join(known)}",
                field="LoRA.targets",
            )
        shapes = [shape for name, shape in known.items() if self.adapts(name)]
        least = min(side for shape in (*shapes, self.head(config)) for side in shape)
        if self.rank > least:
            raise bad_request(
                f"lora.rank is {self.rank}, and the smallest side of its targets has {least}; "
                "give a lower rank, or other targets",
                field="LoRA.rank",
            )


def linears(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the linear layers of each layer of a model: (out, in) by name."""
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads = int(config["num_attention_heads"])
    size = config.get("head_dim") or hidden // heads
    query, key = heads * size, (config.get("num_key_value_heads") or heads) * size
    ends = {"o_proj": (hidden, query), "down_proj": (hidden, inner)}
    if config.get("model_type") == "phi3":
        return {"qkv_proj": (query + 2 * key, hidden), "gate_up_proj": (2 * inner, hidden)} | ends
    single = {"q_proj": query, "k_proj": key, "v_proj": key, "gate_proj": inner, "up_proj": inner}
    return {name: (out, hidden) for name, out in single.items()} | ends


def engine_rank(rank: int) -> int:
    """Return the rank of an engine for adapters of `rank`; 0 where there is none.

    >>> engine_rank(4), engine_rank(16), engine_rank(0), engine_rank(513)
    (8, 16, 0, 0)
    """
    return next((one for one in ENGINE_RANKS if 0 < rank <= one), 0)


def is_applied(lora: Lora, config: Mapping[str, Any]) -> bool:
    """Whether an engine can apply adapters beside others'; else they are merged into one alone.

    vLLM applies an adapted unembedding to some vocabularies alone.
    """
    return config.get("model_type") in _APPLIED and not lora.head(config)


def is_adapter(index: Iterable[statemanager_pb2.CanonicalPiece]) -> bool:
    """Whether pieces are those of adapters."""
    return any(piece.kind == SCALE_KIND for piece in index)


def names_of(weight: str) -> tuple[str, str]:
    """Return what A and B of a linear layer's weight are called.

    >>> names_of("model.layers.0.mlp.up_proj.weight")[0]
    'base_model.model.model.layers.0.mlp.up_proj.lora_A.weight'
    """
    linear = PREFIX + weight.removesuffix("weight")
    return f"{linear}lora_A.weight", f"{linear}lora_B.weight"


def peft_config(
    shapes: Mapping[str, tuple[int, ...]], *, scale: float, base: str
) -> dict[str, Any]:
    """Return PEFT's configuration of adapters of these tensors on the model `base`."""
    rank = next(shape[0] for name, shape in shapes.items() if name.endswith("lora_A.weight"))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-3] for name in shapes}),
        "inference_mode": True,
    }


def check_checkpoint(directory: Path, lora: Lora, *, base: str) -> None:
    """Refuse a PEFT directory that is not of these adapters on the model `base`.

    Raises:
        PlexError: `unknown_model`, naming the key, what it holds and what it must hold.
    """
    path = directory / CONFIG_FILE
    try:
        found = dict(paths.read_json(path, most_bytes=MAX_CONFIG_BYTES))
    except (OSError, ValueError, TypeError) as error:
        text = f"cannot read {path} ({error}); a deployment with lora loads what one of these saved"
        raise PlexError(ErrorCode.UNKNOWN_MODEL, text, path=path) from error
    wanted = {"r": lora.rank, "base_model_name_or_path": base}
    problems = [
        f"{key} is {found.get(key)!r}, here {value!r}"
        for key, value in wanted.items()
        if found.get(key) != value
    ]
    problems += [f"{key} is {found[key]!r}" for key in _OTHERWISE if found.get(key)]
    alpha = found.get("lora_alpha")
    if not isinstance(alpha, int | float) or not math.isclose(alpha, lora.alpha, rel_tol=1e-6):
        problems.append(f"lora_alpha is {alpha!r}, here {lora.alpha!r}")
    if problems:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"the adapters in {directory} are others than this deployment's: "
            f"{'; '.join(problems)}. Deploy with lora as they have it, on their model",
            path=directory,
        )
