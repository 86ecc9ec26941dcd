"""Construction of a GPTModel from a Hugging Face directory: configuration, layers, heads."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from plexclient.specs import Parallel
from plexsvc.worker.backends.megatron.attention import PackedAttention, PackedRotary, RMSNorm
from plexsvc.worker.backends.megatron.mapping import Geometry

_SPLIT_DIM: Final = {
    "word_embeddings.weight": 0,
    "output_layer.weight": 0,
    "linear_qkv.weight": 0,
    "linear_qkv.bias": 0,
    "linear_fc1.weight": 0,
    "linear_proj.weight": 1,
    "linear_fc2.weight": 1,
}


def head_dim(hf: Any) -> int:
    """Return the size of one attention head."""
    return int(getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads)


def megatron_config(hf: Any, parallel: Parallel, *, dtype: Any) -> Any:
    """Return Megatron's configuration: sums over tokens, packed batches, no dropout."""
    on_gpu = torch.cuda.is_available()
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=head_dim(hf),
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=hf.model_type == "qwen2",
        qk_layernorm=hf.model_type in ("qwen3", "qwen3_moe"),
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        context_parallel_size=parallel.cp,
        sequence_parallel=parallel.sequence_parallel and parallel.tp > 1,
        calculate_per_token_loss=True,  # gradients are plain sums over micro-batches and replicas
        batch_p2p_comm=on_gpu,  # gloo has plain isend and irecv only
        batch_p2p_sync=on_gpu,
        overlap_p2p_comm=False,
        deallocate_pipeline_outputs=True,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # variable_seq_lengths insists, dense models too
        **(_experts_config(hf, parallel) if num_experts(hf) else {}),
    )


def num_experts(hf: Any) -> int:
    """Return the experts of a layer; 0 of a dense model."""
    return int(getattr(hf, "num_experts", 0))


def _experts_config(hf: Any, parallel: Parallel) -> dict[str, Any]:
    """Return Megatron's settings of experts: no token is dropped, and no loss is added."""
    return {
        "num_moe_experts": num_experts(hf),
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        "moe_router_topk": hf.num_experts_per_tok,
        # A softmax over a token's experts alone is one over all of them whose shares add up to 1.
        "moe_router_pre_softmax": not hf.norm_topk_prob,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "expert_model_parallel_size": parallel.ep,
        "expert_tensor_parallel_size": 1,
    }


def build_model(hf: Any, config: Any, *, is_critic: bool) -> Any:
    """Return this rank's part of the model, uninitialised, in host memory."""
    is_last = parallel_state.is_pipeline_last_stage()
    rope = _rope(hf)
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layers(config),
        vocab_size=padded_vocab(hf, config.tensor_model_parallel_size),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=is_last,
        share_embeddings_and_output_weights=hf.tie_word_embeddings and not is_critic,
        position_embedding_type="rope",
        rotary_base=rope["rope_theta"],
    )
    if is_critic and is_last:
        model.output_layer = ValueHead(config)
    _mark_split_parameters(model)
    if rope.get("rope_type", "default") != "default":
        _set_scaled_frequencies(model, hf, rope["rope_type"])
    model.rotary_pos_emb = PackedRotary(model.rotary_pos_emb)
    return model


def padded_vocab(hf: Any, tp: int) -> int:
    """Return the vocabulary rounded up to a multiple of `tp`."""
    return math.ceil(hf.vocab_size / tp) * tp


def geometry(hf: Any, *, is_critic: bool) -> Geometry:
    """Return what the canonical mapping needs of this rank."""
    local = num_experts(hf) // parallel_state.get_expert_model_parallel_world_size()
    first = local * parallel_state.get_expert_model_parallel_rank()
    return Geometry(
        hidden=hf.hidden_size,
        head_dim=head_dim(hf),
        num_heads=hf.num_attention_heads,
        num_kv_heads=hf.num_key_value_heads,
        ffn=hf.moe_intermediate_size if num_experts(hf) else hf.intermediate_size,
        vocab=hf.vocab_size,
        is_tied=hf.tie_word_embeddings and not is_critic,
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        experts=range(first, first + local),
    )


class Experts(MoELayer):
    """Megatron's layer of experts, without the graph that its dispatcher holds until its next pass.

    With recomputation that would be the graph of the whole layer before its experts.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the layer returns; a recomputation ends it early, by an exception."""
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.token_dispatcher.probs = None


class ValueHead(torch.nn.Module):
    """A critic's head in place of the output layer: a value a token, whole on every rank."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        empty = torch.empty(1, config.hidden_size, dtype=config.params_dtype)
        self.value_head = torch.nn.Parameter(empty)

    def forward(
        self, hidden: Tensor, *, weight: None, runtime_gather_output: None
    ) -> tuple[Tensor, None]:
        """Return values [T, 1, 1] of hidden states [T, 1, H]; it has its own weight, whole."""
        assert weight is None, "a critic's head is not tied to the embedding"
        assert runtime_gather_output is None, runtime_gather_output
        if self.sequence_parallel:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=False
            )
        return torch.nn.functional.linear(hidden, self.value_head), None


def _layers(config: Any) -> Any:
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    layer = spec.submodules
    attention = layer.self_attention.submodules
    attention.core_attention = PackedAttention
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    if config.num_moe_experts:
        layer.mlp.module = Experts
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    layers = [spec] * get_num_layers_to_build(config)
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm)


def _mark_split_parameters(model: Any) -> None:
    """Say which parameters are split over tensor ranks.

    Without `perform_initialization` Megatron's own layers do not, and the gradient norm then counts
    only tensor rank 0's shards, in silence.
    """
    for name, param in model.named_parameters():
        for suffix, dim in _SPLIT_DIM.items():
            if name.endswith(suffix):
                param.tensor_model_parallel, param.partition_dim = True, dim
                param.partition_stride = 2 if suffix == "linear_fc1.weight" else 1


def _rope(hf: Any) -> dict[str, Any]:
    found = getattr(hf, "rope_parameters", None)
    return dict(found) if found else {"rope_theta": getattr(hf, "rope_theta", 1e4)}


def _set_scaled_frequencies(model: Any, hf: Any, rope_type: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](hf, torch.device("cpu"))
    assert attention_factor == 1.0, (rope_type, attention_factor)  # of types that families admits
    model.rotary_pos_emb.inv_freq = frequencies.to(model.rotary_pos_emb.inv_freq)
