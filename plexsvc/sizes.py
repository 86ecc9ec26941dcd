"""Bytes of a model's state and of a pass on one rank, estimated from configuration and layout.

The estimate is an upper bound that is close: norms and biases count as if every family had all of
them. It is needed before a rank runs; from then on what the rank says counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plexclient.specs import Parallel
from plexsvc import families
from plexsvc.lora import Lora, linears

Config = Mapping[str, Any]
"""A model directory's `config.json`."""

FLOAT32_BYTES: Final = 4
HALF_BYTES: Final = 2

CONTEXT_BYTES: Final = 5 << 29
"""A process's CUDA context, kernels and cuBLAS workspaces, 2,534 MiB of an H200 with torch 2.11."""
COMMUNICATOR_BYTES: Final = 512 << 20
"""Buffers of its NCCL communicators, where it has peers: by NVIDIA's documents, not measured."""

MICRO_BATCH_TOKENS: Final = 4096
"""Tokens of a micro-batch where a deployment does not say how many."""

LOGITS_AT_ONCE: Final = 1 << 27
"""Logits whose float32 copies are held at once (`worker/backends/packed.py`)."""

_NEEDED: Final = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes on the largest rank of a deployment; zeros where nothing is known."""

    params: int = 0
    """Parameters, adapters among them."""
    frozen: int = 0
    """Of these, a model under adapters: all that train adapters of it on a device share it."""
    optimizer: int = 0
    """Moments and float32 masters of what is trained."""
    gradients: int = 0
    version: int = 0
    """One published version: the parameters, or adapters alone."""
    steps_on_host: bool = False
    """Whether the optimizer is in host memory."""

    @property
    def state(self) -> int:
        """Return the bytes of all regions that a device holds."""
        return self.params + self.gradients + self.optimizer - self.host

    @property
    def host(self) -> int:
        """Return the bytes of those that host memory holds, wherever the others are."""
        return self.optimizer if self.steps_on_host else 0


def steps_on_devices(backend: str, *, has_lora: bool) -> str:
    """Return what keeps an optimizer from stepping on the host; empty: nothing does.

    >>> steps_on_devices("noop", has_lora=False)
    "backend 'noop'"
    """
    refusing = {
        f"backend {backend!r}": backend not in {"fsdp", "megatron"},
        "lora": has_lora,
    }
    return next((what for what, refuses in refusing.items() if refuses), "")


def of(
    config: Config,
    *,
    backend: str,
    dtype: str,
    parallel: Parallel,
    is_trained: bool,
    lora: Lora | None = None,
    steps_on_host: bool = False,
) -> Sizes:
    """Return what a deployment takes on its largest rank.

    >>> tiny = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
    ...         "num_attention_heads": 2, "vocab_size": 32, "tie_word_embeddings": True}
    >>> of(tiny, backend="fsdp", dtype="float32", parallel=Parallel(), is_trained=False)
    Sizes(params=7008, frozen=0, optimizer=0, gradients=0, version=7008, steps_on_host=False)
    """
    if backend not in _PARAMETERS or any(key not in config for key in _NEEDED):
        return Sizes()
    # fsdp keeps what it trains in float32, and rounds it as it gathers it.
    is_half = dtype == "bfloat16" and not (is_trained and backend == "fsdp" and lora is None)
    itemsize = HALF_BYTES if is_half else FLOAT32_BYTES
    count = _PARAMETERS[backend](config, parallel)
    experts = _local_experts(config, parallel) if backend == "megatron" else 0
    params = count * itemsize
    if lora is not None:
        adapters = lora.elements(config) * FLOAT32_BYTES
        return Sizes(
            params=params + adapters,
            frozen=params,
            optimizer=2 * adapters,
            gradients=adapters,
            version=adapters,
        )
    if not is_trained:
        return Sizes(params=params, version=params)
    kept = 2 * FLOAT32_BYTES + (FLOAT32_BYTES if itemsize < FLOAT32_BYTES else 0)
    dense, expert = 1, 1
    if parallel.distributed_optimizer:
        dense = parallel.dp * parallel.cp
        expert = parallel.tp * dense // parallel.ep
    return Sizes(
        params=params,
        optimizer=math.ceil(kept * ((count - experts) / dense + experts / expert)),
        gradients=count * FLOAT32_BYTES,
        version=params,
        steps_on_host=steps_on_host,
    )


def of_pass(
    config: Config,
    *,
    backend: str,
    dtype: str,
    parallel: Parallel,
    tokens: int,
    recompute: str,
    lora: Lora | None = None,
) -> int:
    """Return what forward_backward of micro-batches of `tokens` takes beside the state, at most.

    Of the tokens each of `cp` ranks has a share.

    That is the activations that the backward pass needs, with as many micro-batches in flight as
    the pipeline has stages, the logits, the parameters that fsdp gathers, and what one layer's
    backward pass works in; 0 where nothing is known. On a CPU norms of bfloat16 compute in float32
    and hold a quarter more.

    Layers are counted as by Korthikanti et al. (2022, "Reducing Activation Recomputation in Large
    Transformer Models"), for kernels that keep no attention scores. Tokens are taken to be dealt to
    experts evenly: ranks whose experts are asked for more hold more.
    """
    if backend not in _PARAMETERS or any(key not in config for key in _NEEDED):
        return 0
    itemsize = HALF_BYTES if dtype == "bfloat16" else FLOAT32_BYTES
    hidden, tp = config["hidden_size"], parallel.tp
    held = hidden / (tp if parallel.sequence_parallel else 1)
    tokens = math.ceil(tokens / parallel.cp)
    groups = max(_kv_heads(config), parallel.cp * tp)  # ranks that share a head copy it
    query, key = (n * _head_dim(config) for n in (config["num_attention_heads"], groups))
    mlp = _mlp_of_pass(config) / tp
    layer = 6 * held + 5 * (query + key) / tp + mlp
    kept = {"": layer, "selective": layer - mlp, "full": held}[recompute]
    layers = config["num_hidden_layers"] * kept + layer + mlp + 2 * hidden
    if lora is not None:  # float32 inputs of the adapters, and what A makes of them
        layers += _adapted(config, lora, recompute=recompute) * FLOAT32_BYTES / itemsize
        layers += 3 * sum(lora.head(config)[:1]) * FLOAT32_BYTES / itemsize
    rows = config["vocab_size"] / tp
    part = min(tokens, LOGITS_AT_ONCE / rows)
    head = 2 * itemsize * tokens * rows + 4 * FLOAT32_BYTES * part * rows
    table = rows * hidden
    matrices = _matrices(config) / tp + _router(config) + _experts(config)
    weights = max(table, _matrices(config) / tp)
    if backend == "fsdp":  # the root and two layers are gathered, and their gradients are
        weights = 2 * (_tables(config) * table + 2 * matrices) + 2 * table
    return int(itemsize * (tokens * layers + weights) + head)


def _adapted(config: Config, lora: Lora, *, recompute: str) -> int:
    """Return the numbers a token that adapters of all layers keep for the backward pass."""
    sides = {name: shape[1] + lora.rank for name, shape in linears(config).items()}
    every = sum(size for name, size in sides.items() if lora.adapts(name))
    mlps = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
    mlp = sum(sides[name] for name in mlps if name in sides and lora.adapts(name))
    kept = {"": every, "selective": every - mlp, "full": 0}[recompute]
    return int(config["num_hidden_layers"] * kept + every)


def _megatron(config: Mapping[str, int], parallel: Parallel) -> int:
    """Return the parameters of the largest stage: the first, which holds the embedding too."""
    layers = math.ceil(config["num_hidden_layers"] / parallel.pp)
    tables = 1 if parallel.pp > 1 else _tables(config)
    split = layers * _matrices(config) + tables * config["vocab_size"] * config["hidden_size"]
    whole = (layers + 1) * _vectors(config) + layers * _router(config)
    whole += _local_experts(config, parallel)
    return math.ceil(split / parallel.tp) + whole


def _local_experts(config: Mapping[str, int], parallel: Parallel) -> int:
    """Return the elements of the experts that a rank of megatron holds."""
    layers = math.ceil(config["num_hidden_layers"] / parallel.pp)
    return layers * _experts(config) // parallel.ep


def _fsdp(config: Mapping[str, int], parallel: Parallel) -> int:
    """Return the parameters of one shard; each is padded to whole rows."""
    layers = config["num_hidden_layers"]
    tables = _tables(config) * config["vocab_size"] * config["hidden_size"]
    layer = _matrices(config) + _router(config) + _experts(config) + _vectors(config)
    whole = layers * layer + tables
    return math.ceil(whole / parallel.world_size) + config["hidden_size"]


_PARAMETERS: Final = {"megatron": _megatron, "fsdp": _fsdp}


def _tables(config: Mapping[str, int]) -> int:
    """Return how many matrices a model has between tokens and vectors."""
    return 1 if config.get("tie_word_embeddings", False) else 2


def _matrices(config: Mapping[str, int]) -> int:
    """Return the elements of one layer's matrices that tensor ranks split: no experts' are."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    attention = 2 * (heads + _kv_heads(config)) * _head_dim(config) * hidden
    mlp = 0 if families.num_experts(config) else 3 * config["intermediate_size"] * hidden
    return attention + mlp


def _router(config: Mapping[str, int]) -> int:
    """Return the elements of one layer's router to its experts, which every rank has whole."""
    return config["hidden_size"] * families.num_experts(config)


def _experts(config: Mapping[str, int]) -> int:
    """Return the elements of one layer's experts."""
    experts = families.num_experts(config)
    return experts and 3 * experts * config["hidden_size"] * config["moe_intermediate_size"]


def _mlp_of_pass(config: Mapping[str, int]) -> int:
    """Return the numbers a token that the backward pass of a layer's MLP, or experts, needs."""
    experts = families.num_experts(config)
    if not experts:
        return 4 * config["intermediate_size"]
    each = 5 * config["moe_intermediate_size"] + 3 * config["hidden_size"]
    return config["num_experts_per_tok"] * each + 4 * experts


def _vectors(config: Mapping[str, int]) -> int:
    """Return the elements of one layer's norms and biases, of a family that has all of them."""
    heads, kv_heads = config["num_attention_heads"], _kv_heads(config)
    biases = config["hidden_size"] + 2 * config["intermediate_size"]
    biases = 0 if families.num_experts(config) else biases
    return 4 * config["hidden_size"] + 2 * (heads + kv_heads) * _head_dim(config) + biases


def _kv_heads(config: Mapping[str, int]) -> int:
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def _head_dim(config: Mapping[str, int]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
