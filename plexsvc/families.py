"""The model families that each training backend computes right, by configuration key and value.

A family is in the table with the values that `tests/process/worker/test_families.py` compares with
transformers. Any other value, and any key that is not here, is refused by name: a key that nobody
looked at may change what is computed. To admit one, add it here and a case there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError

Config = Mapping[str, Any]

MAX_CONFIG_BYTES: Final = 256 << 10
"""Largest `config.json` that is read: while it is parsed others wait. Most have some KiB."""

MODEL_FILES: Final = (
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
"""The files of a model directory that a client may fetch: the tokenizer's, never weights."""

MAX_PROBLEMS: Final = 32
"""Keys that a refusal names."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What a key may hold: a test, and its text, which completes "it may be ..."."""

    text: str
    fits: Callable[[Any], bool]


def whole(most: int, *, least: int = 1) -> KeyRule:
    """Return the rule of an integer from `least` to `most`."""
    text = f"a whole number from {least} to {most}"
    return KeyRule(text, lambda value: type(value) is int and least <= value <= most)


def only(*values: object) -> KeyRule:
    """Return the rule of some values; 0 is also 0.0, but True is not 1."""
    known = [(isinstance(value, bool), value) for value in values]
    return KeyRule(
        " or ".join(map(repr, values)), lambda value: (isinstance(value, bool), value) in known
    )


def maybe(rule: KeyRule) -> KeyRule:
    """Return the rule of null, or what `rule` says."""
    return KeyRule(f"null or {rule.text}", lambda value: value is None or rule.fits(value))


def listed(rule: KeyRule) -> KeyRule:
    """Return the rule of null, or a list of what `rule` says."""
    return KeyRule(
        f"null or a list, each {rule.text}",
        lambda value: value is None or (isinstance(value, list) and all(map(rule.fits, value))),
    )


def rope(*types: str) -> KeyRule:
    """Return the rule of rotary embeddings of some types, for all layers or by layer type."""

    def is_one(value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() - ROPE_NUMBERS - {"rope_type", "type"}:
            return False
        numbers = [value[name] for name in ROPE_NUMBERS if name in value]
        kind = value.get("rope_type", value.get("type", "default"))
        return kind in types and all(map(REAL.fits, numbers))

    def fits(value: Any) -> bool:
        by_layer = isinstance(value, dict) and value and value.keys() <= LAYER_TYPES
        return value is None or all(map(is_one, value.values() if by_layer else [value]))

    return KeyRule(f"rope parameters of type {' or '.join(types)}", fits)


REAL: Final = KeyRule(
    "a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf
)
LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})
ROPE_NUMBERS: Final = frozenset(
    {
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
    }
)

SIZES: Final[Mapping[str, KeyRule]] = {
    "hidden_size": whole(1 << 17),
    "intermediate_size": whole(1 << 20),
    "num_hidden_layers": whole(1024),
    "num_attention_heads": whole(4096),
    "num_key_value_heads": maybe(whole(4096)),
    "head_dim": maybe(whole(4096)),
    "vocab_size": whole(1 << 24),
    "max_position_embeddings": whole((1 << 31) - 1),
}
"""What a model of any family must keep to, where it says so at all."""

EXPERTS: Final = ("num_experts", "num_local_experts")
"""The keys, either of which says how many experts a layer has."""

INERT: Final = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys that change nothing of a pass over given tokens, whatever they hold.

`pad_token_id` is among them: padding of ours never reaches a loss, so the token is one like any
other, and its embedding is trained (transformers alone would freeze it).
"""

_SILU: Final = {"hidden_act": only("silu")}
_GELU: Final = {
    "hidden_act": only("gelu_pytorch_tanh"),
    "hidden_activation": only("gelu_pytorch_tanh"),
}
_PLAIN_ROPE: Final = {"rope_scaling": rope("default"), "rope_parameters": rope("default")}
_COMMON: Final[Mapping[str, KeyRule]] = {
    **SIZES,
    "attention_dropout": only(0.0),
    "is_encoder_decoder": only(False),
    "rms_norm_eps": REAL,
    "rope_theta": REAL,
    "tie_word_embeddings": only(False, True),
}
_WINDOW: Final[Mapping[str, KeyRule]] = {
    "layer_types": listed(only(*sorted(LAYER_TYPES))),
    "sliding_window": maybe(whole((1 << 31) - 1)),
}
_QWEN: Final[Mapping[str, KeyRule]] = {
    **_SILU,
    **_PLAIN_ROPE,
    **_WINDOW,
    "max_window_layers": whole(1024, least=0),
    "use_mrope": only(False),
    "use_sliding_window": only(False, True),
}
_NO_WINDOW: Final[Mapping[str, KeyRule]] = {
    "layer_types": listed(only("full_attention")),
    "use_sliding_window": only(False),
}
_GEMMA: Final[Mapping[str, KeyRule]] = {
    **_GELU,
    **_WINDOW,
    "attention_bias": only(False),
    "query_pre_attn_scalar": REAL,
    "use_bidirectional_attention": only(None, False),
}
_QWEN3_MOE: Final[Mapping[str, KeyRule]] = {
    **_QWEN,
    "attention_bias": only(False, True),
    "decoder_sparse_step": only(1),
    "mlp_only_layers": only(None, []),
    "moe_intermediate_size": whole(1 << 20),
    "norm_topk_prob": only(False, True),
    "num_experts": whole(1 << 16),
    "num_experts_per_tok": whole(1 << 16),
    "num_local_experts": whole(1 << 16),
    "output_router_logits": only(False),  # with it transformers adds a loss of the router's own
    "router_aux_loss_coef": KeyRule("a number", lambda value: type(value) in (int, float)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type`: its class in transformers, and what each key may hold."""

    architecture: str
    fsdp: Mapping[str, KeyRule]
    megatron: Mapping[str, KeyRule] | None = field(default=None)
    """What megatron narrows; None where it does not build the family."""

    def rules(self, backend: str) -> Mapping[str, KeyRule] | None:
        """Return what each key may hold on `backend`; None when it does not run the family."""
        if backend == "fsdp":
            return {**_COMMON, **self.fsdp}
        return None if self.megatron is None else {**_COMMON, **self.fsdp, **self.megatron}


_LLAMA_ROPE: Final = rope("default", "linear", "llama3")
FAMILIES: Final[Mapping[str, Family]] = {
    "qwen2": Family(architecture="Qwen2ForCausalLM", fsdp=_QWEN, megatron=_NO_WINDOW),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        fsdp={**_QWEN, "attention_bias": only(False, True)},
        megatron={**_NO_WINDOW, "attention_bias": only(False)},
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        fsdp=_QWEN3_MOE,
        megatron={**_NO_WINDOW, "attention_bias": only(False)},
    ),
    "llama": Family(
        architecture="LlamaForCausalLM",
        fsdp={
            **_SILU,
            "attention_bias": only(False, True),
            "mlp_bias": only(False, True),
            "pretraining_tp": only(1),
            "rope_parameters": _LLAMA_ROPE,
            "rope_scaling": _LLAMA_ROPE,
        },
        megatron={"attention_bias": only(False), "mlp_bias": only(False)},
    ),
    "mistral": Family(architecture="MistralForCausalLM", fsdp={**_SILU, **_PLAIN_ROPE, **_WINDOW}),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        fsdp={
            **_GEMMA,
            **_PLAIN_ROPE,
            "attn_logit_softcapping": maybe(REAL),
            "final_logit_softcapping": maybe(REAL),
            "sliding_window_size": maybe(whole((1 << 31) - 1)),
        },
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        fsdp={
            **_GEMMA,
            "attn_logit_softcapping": only(None),
            "final_logit_softcapping": only(None),
            "rope_local_base_freq": REAL,
            "rope_parameters": rope("default", "linear"),
            "rope_scaling": rope("default", "linear"),
            "sliding_window_pattern": whole(1024),
            "_sliding_window_pattern": whole(1024),
        },
    ),
    "phi3": Family(
        architecture="Phi3ForCausalLM",
        fsdp={
            **_SILU,
            **_PLAIN_ROPE,
            "attention_bias": only(False),
            "embd_pdrop": only(0.0),
            "full_attn_mod": only(1),
            "interpolate_factor": only(1),
            "lm_head_bias": only(False),
            "mlp_bias": only(False),
            "original_max_position_embeddings": whole((1 << 31) - 1),
            "partial_rotary_factor": REAL,
            "resid_pdrop": only(0.0),
            "sliding_window": maybe(whole((1 << 31) - 1)),
        },
    ),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM",
        fsdp={**_SILU, **_PLAIN_ROPE, "attention_bias": only(False)},
    ),
}


def num_experts(table: Config) -> int:
    """Return the experts of each layer; 0 of a dense model."""
    return next((table[key] for key in EXPERTS if key in table), 0)


def shares_heads(table: Config, ranks: int, *, tp: int = 1) -> bool:
    """Whether ranks can share out a tensor rank's heads: some may copy a key-value head.

    >>> model = {"num_attention_heads": 8, "num_key_value_heads": 2}
    >>> [ranks for ranks in range(1, 9) if shares_heads(model, ranks)]
    [1, 2, 4, 8]
    """
    heads = table.get("num_attention_heads", 0)
    groups = table.get("num_key_value_heads") or heads
    heads, groups = heads // tp, groups // tp
    return ranks == 1 or (heads % ranks == 0 < groups and 0 in (groups % ranks, ranks % groups))


def unknown_model(directory: object, found: str, *, remedy: str = "") -> PlexError:
    """Return an `unknown_model` that says what was found at `directory`."""
    remedy = remedy or (
        "give a Hugging Face directory on the cluster's file system with config.json and "
        "*.safetensors"
    )
    return PlexError(
        ErrorCode.UNKNOWN_MODEL, f"model {str(directory)!r}: {found}; {remedy}", model=directory
    )


def read(directory: Path) -> Config:
    """Return the `config.json` of a model directory, whose sizes are numbers a model can have.

    Raises:
        PlexError: `unknown_model`.
    """
    try:
        table = paths.read_json(directory / "config.json", most_bytes=MAX_CONFIG_BYTES)
    except (OSError, ValueError) as error:
        raise unknown_model(directory, f"its config.json cannot be read ({error})") from error
    if not isinstance(table, dict):
        raise unknown_model(directory, f"its config.json is a {type(table).__name__}, no object")
    for key, rule in SIZES.items():
        if key in table and not rule.fits(table[key]):
            raise unknown_model(
                directory,
                f"its config.json says {key} = {_shown(table[key])}; it may be {rule.text}",
            )
    return table


def check(table: Config, *, backend: str, directory: object) -> None:
    """Refuse a configuration that `backend` was not proved to compute right.

    Raises:
        PlexError: `unknown_model`, naming the family, or each key and what it may hold.
    """
    kind = table.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    rules = family.rules(backend) if family is not None else None
    if family is None or rules is None:
        fitting = [name for name, other in FAMILIES.items() if other.rules(backend) is not None]
        raise unknown_model(
            directory,
            f"it is a {_shown(kind)} model, and backend {backend!r} computes {', '.join(fitting)}",
            remedy=_elsewhere(table, backend=backend),
        )
    problems = list(_problems(table, rules, architecture=family.architecture))
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"and {len(problems) - MAX_PROBLEMS} more"]
    if problems:
        raise unknown_model(
            directory,
            f"backend {backend!r} was never compared with transformers for a {kind} model like "
            f"this one: {'; '.join(problems)}",
            remedy=_elsewhere(table, backend=backend),
        )


def _problems(table: Config, rules: Mapping[str, KeyRule], *, architecture: str) -> Iterator[str]:
    classes = table.get("architectures")
    if classes is not None and classes != [architecture]:
        yield f"architectures = {_shown(classes)}, it may be {[architecture]}"
    for key, value in table.items():
        if key in INERT or key == "architectures":
            continue
        if key not in rules:
            yield f"{key[:100]} = {_shown(value)}, which no test covers"
        elif not rules[key].fits(value):
            yield f"{key} = {_shown(value)}, it may be {rules[key].text}"
    if "num_experts" in rules:
        yield from _of_experts(table)
    yield from _contradictions(table)


def _of_experts(table: Config) -> Iterator[str]:
    counts = {table[key] for key in EXPERTS if key in table}
    if len(counts) > 1:
        yield f"{' and '.join(EXPERTS)} differ"
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        if key not in table and not (key in EXPERTS and counts):
            yield f"{key} is missing"
    if num_experts(table) < table.get("num_experts_per_tok", 0):
        yield f"each token takes {table['num_experts_per_tok']} of {num_experts(table)} experts"


def _contradictions(table: Config) -> Iterator[str]:
    heads, groups = table.get("num_attention_heads"), table.get("num_key_value_heads")
    hidden, size = table.get("hidden_size"), table.get("head_dim")
    layers, types = table.get("num_hidden_layers"), table.get("layer_types")
    if heads and groups and heads % groups:
        yield f"{heads} attention heads do not divide into {groups} key-value heads"
    if heads and hidden and not size and hidden % heads:
        yield f"hidden_size = {hidden} does not divide into {heads} heads, and there is no head_dim"
    if size and size % 2:
        yield f"head_dim = {size} is odd, and rotary embeddings take pairs"
    if layers and isinstance(types, list) and len(types) != layers:
        yield f"{len(types)} layer_types for {layers} layers"


def _elsewhere(table: Config, *, backend: str) -> str:
    """Return what to do: another backend where one fits."""
    others = [name for name in ("fsdp", "megatron") if name != backend and _fits(table, name)]
    if others:
        return f"use backend {others[0]!r}, which computes it"
    return "use another model, or add the case to plexsvc/families.py with its test"


def _fits(table: Config, backend: str) -> bool:
    family = FAMILIES.get(str(table.get("model_type")))
    rules = family.rules(backend) if family is not None else None
    if family is None or rules is None:
        return False
    return not any(_problems(table, rules, architecture=family.architecture))


def _shown(value: object, *, most: int = 100) -> str:
    if isinstance(value, dict | list) and len(value) > 8:
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = repr(value[:most] if isinstance(value, str) else value)
    return text if len(text) <= most else text[: most - 3] + "..."
