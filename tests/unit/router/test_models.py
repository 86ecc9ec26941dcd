"""Checks of deployments: the model is there, the degrees divide it, the role fits the backend."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.paths import CheckedPath
from plexsvc.router.models import (
    check_model,
    check_seeds,
    check_spec,
    check_weights,
)
from tests.rigs.model_families import BOTH, config_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "tiny"
    path.mkdir(parents=True)
    table = {
        "model_type": "qwen3",
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 102,
        "num_hidden_layers": 6,
    }
    (path / "config.json").write_text(json.dumps(table))
    (path / "model.safetensors").write_bytes(b"")
    return path


def spec(**changes: Any) -> pb.DeploymentSpec:
    base: dict[str, Any] = {"role": "actor", "backend": "megatron", "model": "/m"}
    return pb.DeploymentSpec(**(base | changes))


def code_of(found: pytest.ExceptionInfo[PlexError]) -> ErrorCode:
    return found.value.code


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_directory_that_is_no_model_says_what_it_lacks(model: Path, missing: str) -> None:
    (model / missing).unlink()
    place = CheckedPath(path=model, root=model.parent)
    with pytest.raises(PlexError) as caught:
        check_weights(place, check_model(spec(backend="vllm"), model), backend="fsdp")
    assert code_of(caught) == ErrorCode.UNKNOWN_MODEL
    assert missing.removeprefix("model") in caught.value.message


@pytest.mark.parametrize("backend", ["fsdp", "megatron", "vllm"])
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"num_attention_heads": "many"}',
        '{"num_attention_heads": 0}',
        '{"num_hidden_layers": 1000000}',
        '{"hidden_size": 1000000000}',
        '{"vocab_size": -1}',
    ],
    ids=lambda text: text[:40],
)
def test_an_impossible_config_is_an_unknown_model(model: Path, text: str, backend: str) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(PlexError) as caught:
        check_model(spec(backend=backend), model)
    assert code_of(caught) == ErrorCode.UNKNOWN_MODEL


def test_a_family_that_only_another_backend_computes_is_refused_with_its_name(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "gemma2"}')
    check_model(spec(backend="fsdp"), model)
    check_model(spec(backend="vllm", role="rollout"), model)  # the engine judges
    with pytest.raises(PlexError, match="use backend 'fsdp'") as caught:
        check_model(spec(backend="megatron"), model)
    assert code_of(caught) == ErrorCode.UNKNOWN_MODEL


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"backend": "vllm", "role": "rollout", "num_instances": 4},
        {"backend": "fsdp", "parallel": common_pb2.Parallel(dp=2)},
        {"backend": "noop", "parallel": common_pb2.Parallel(tp=2, pp=2)},
        {"parallel": common_pb2.Parallel(tp=2, sequence_parallel=True)},
        {"optimizer": pb.Optimizer(kind="adamw", lr=0.0, beta1=0.9, beta2=0.95)},
        {"role": "reference", "dtype": "bfloat16"},
        {"backend": "fsdp", "dtype": "bfloat16"},
        {"backend": "fsdp", "optimizer": pb.Optimizer(lr=1.0, on="host")},
        {"recompute": "full", "optimizer": pb.Optimizer(kind="adamw")},
        {
            "parallel": common_pb2.Parallel(dp=2, distributed_optimizer=True),
            "optimizer": pb.Optimizer(),
        },
    ],
)
def test_a_spec_that_makes_sense_is_taken(good: dict[str, object]) -> None:
    check_spec(spec(**good))


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"backend": "jax"}, "jax"),
        ({"backend": ""}, "megatron, fsdp"),
        ({"backend": "vllm"}, "rollout"),
        ({"role": "rollout"}, "rollout"),
        ({"dtype": "int4"}, "int4"),
        ({"max_logprob_gap": 1.0, "role": "critic"}, "'critic' has no policy loss"),
        ({"is_durable": True, "role": "reference"}, "durability='step' to an actor"),
        ({"recompute": "some", "optimizer": pb.Optimizer()}, "'some' is not known"),
        ({"recompute": "full"}, "without an optimizer"),
        ({"recompute": "full", "backend": "noop", "optimizer": pb.Optimizer()}, "'noop' with"),
        ({"recompute": "full", "backend": "vllm", "role": "rollout"}, "without an optimizer"),
        ({"checkpoint_every": 2, "checkpoints_kept": 1}, "durability='step' keeps"),
        ({"is_durable": True, "checkpoint_every": 2}, "keep=0; keep 1"),
        ({"is_durable": True, "checkpoints_kept": 2}, "checkpoint_every=0 with keep=2"),
        ({"backend": "fsdp", "parallel": common_pb2.Parallel(tp=2)}, "tp=2"),
        (
            {"backend": "vllm", "role": "rollout", "parallel": common_pb2.Parallel(dp=2)},
            "more instances",
        ),
        ({"parallel": common_pb2.Parallel(sequence_parallel=True)}, "sequence_parallel"),
        *(
            ({"parallel": common_pb2.Parallel(distributed_optimizer=True, dp=dp), **rest}, word)
            for dp, rest, word in (
                (1, {"optimizer": pb.Optimizer()}, "dp * cp = 1"),
                (2, {}, "without an optimizer"),
                (2, {"backend": "fsdp", "optimizer": pb.Optimizer()}, "shares out everything"),
            )
        ),
        ({"parallel": common_pb2.Parallel(tp=512, dp=512)}, "more ranks"),
        ({"parallel": common_pb2.Parallel(dp=3, ep=2)}, "ep = 2 does not divide tp * dp * cp = 3"),
        ({"role": "reference", "optimizer": pb.Optimizer(kind="adamw")}, "reference"),
        ({"optimizer": pb.Optimizer(kind="sgd")}, "sgd"),
        ({"optimizer": pb.Optimizer(on="disk")}, "'disk' is not known; use device or host"),
        ({"optimizer": pb.Optimizer(on="")}, "'' is not known"),
        *(
            ({"backend": "fsdp", "optimizer": pb.Optimizer(on="host"), **more}, word)
            for more, word in (
                ({"backend": "noop"}, "with backend 'noop'"),
                ({"lora": pb.LoRA(rank=1, alpha=1.0)}, "with lora"),
            )
        ),
        ({"optimizer": pb.Optimizer(lr=-1.0)}, "lr"),
        ({"optimizer": pb.Optimizer(beta1=1.0)}, "beta1"),
        ({"optimizer": pb.Optimizer(weight_decay=float("nan"))}, "weight_decay"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused_by_name(
    bad: dict[str, object], word: str
) -> None:
    with pytest.raises(PlexError) as caught:
        check_spec(spec(**bad))
    assert code_of(caught) == ErrorCode.BAD_REQUEST
    assert word in caught.value.message


@pytest.mark.parametrize(
    ("parallel", "word"),
    [
        (common_pb2.Parallel(tp=5), "12 attention heads"),
        (common_pb2.Parallel(pp=4), "6 layers"),
        (common_pb2.Parallel(dp=2, ep=2), "0 experts"),
        (common_pb2.Parallel(tp=3), "4 key-value heads"),
        (common_pb2.Parallel(tp=4), "102 intermediate units"),
    ],
)
def test_degrees_must_divide_the_model(
    model: Path, parallel: common_pb2.Parallel, word: str
) -> None:
    with pytest.raises(PlexError) as caught:
        check_model(spec(parallel=parallel), model)
    assert code_of(caught) == ErrorCode.BAD_REQUEST
    assert word in caught.value.message


def test_experts_are_shared_out_over_tensor_ranks_and_never_split(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(config_of(BOTH["qwen3_moe"])))
    check_model(spec(parallel=common_pb2.Parallel(pp=2, dp=8, ep=4)), model)
    with pytest.raises(PlexError, match="ep = 8 does not divide the model's 4 experts"):
        check_model(spec(parallel=common_pb2.Parallel(dp=8, ep=8)), model)
    check_model(spec(parallel=common_pb2.Parallel(tp=2, ep=2, sequence_parallel=True)), model)
    for less in (
        common_pb2.Parallel(tp=2, sequence_parallel=True),
        common_pb2.Parallel(tp=2, ep=2),
    ):
        with pytest.raises(PlexError, match="tp = 2 with a model of 4 experts"):
            check_model(spec(parallel=less), model)


def test_degrees_that_divide_are_taken(model: Path) -> None:
    check_model(spec(parallel=common_pb2.Parallel(tp=2, pp=3, dp=7)), model)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([{"kind": "borrowed", "most": 1}], "kind 'borrowed'; give each of spot, serving once"),
        ([{"kind": "spot", "most": 1}] * 2, "kind 'spot'; give each of spot, serving once"),
        ([{"kind": "spot", "least": 3, "most": 1}], "3 to 1 instances"),
    ],
)
def test_instances_that_cannot_be_are_refused(asked: list[dict[str, Any]], says: str) -> None:
    ranges = [pb.InstanceRange(**one) for one in asked]
    with pytest.raises(PlexError, match=says) as caught:
        check_spec(spec(role="rollout", backend="vllm", instances=ranges))
    assert code_of(caught) == ErrorCode.BAD_REQUEST
    with pytest.raises(PlexError, match="has no instances"):
        check_spec(spec(instances=ranges))


@pytest.mark.parametrize("asked", [{}, {"role": "rollout", "backend": "vllm"}])
def test_devices_are_shared_by_dedicated_instances_alone(asked: dict[str, Any]) -> None:
    ranges = [pb.InstanceRange(kind="spot", most=1)]
    with pytest.raises(PlexError, match="shares no devices"):
        check_spec(spec(**asked, instances=ranges if asked else [], shares_devices=True))
    with pytest.raises(PlexError, match="say that they share"):
        check_spec(spec(role="rollout", backend="vllm", where_it_trains=True))
    with pytest.raises(PlexError, match="for a seeding window"):
        check_spec(spec(role="rollout", backend="vllm", seeds="job/rollout"))


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({"role": "actor"}, "which is of role 'actor'"),
        ({"shares_devices": True}, "that shares devices"),
        ({"model": "/other"}, "and model '/other'"),
    ],
)
def test_engines_on_training_devices_serve_a_rollout_of_their_model(
    served: dict[str, Any], says: str
) -> None:
    engines = pb.DeploymentSpec(model="/m", seeds="job/rollout")
    check_seeds(engines, pb.DeploymentSpec(role="rollout", model="/m"))
    given = {"role": "rollout", "model": "/m"} | served
    with pytest.raises(PlexError, match=says) as caught:
        check_seeds(engines, pb.DeploymentSpec(**given))
    assert code_of(caught) == ErrorCode.BAD_REQUEST


def test_degrees_that_no_backend_has_are_refused_from_the_request_alone() -> None:
    for backend, degree, parallel in (
        ("fsdp", "tp", common_pb2.Parallel(tp=2)),
        ("fsdp", "ep", common_pb2.Parallel(dp=2, ep=2)),
        ("vllm", "pp", common_pb2.Parallel(tp=2, pp=2)),
    ):
        role = "rollout" if backend == "vllm" else "actor"
        with pytest.raises(PlexError, match=rf"parallel .*{degree}=2; it splits over"):
            check_spec(spec(backend=backend, role=role, parallel=parallel))


def test_engines_of_several_ranks_are_dedicated_and_awake() -> None:
    wide = partial(spec, backend="vllm", role="rollout", parallel=common_pb2.Parallel(tp=2))
    check_spec(wide(num_instances=2))
    spot = [pb.InstanceRange(kind="spot", most=2)]
    for more, says in (
        ({"shares_devices": True}, "tp = 2 of a rollout with instances that share devices"),
        ({"instances": spot}, r"tp = 2 of a rollout with instances of kind \['spot'\]"),
    ):
        with pytest.raises(PlexError, match=says) as refused:
            check_spec(wide(**more))
        assert code_of(refused) is ErrorCode.BAD_REQUEST


def test_ranks_of_an_engine_share_out_heads_or_have_copies_of_groups(model: Path) -> None:
    def check(tp: int, *, heads: int, groups: int) -> None:
        split = common_pb2.Parallel(tp=tp)
        wide = spec(backend="vllm", role="rollout", parallel=split)
        check_model(wide, with_heads(model, heads=heads, groups=groups))

    check(4, heads=8, groups=2)
    with pytest.raises(PlexError, match="tp = 4 does not divide the model's 6 attention heads"):
        check(4, heads=6, groups=2)
    for tp, heads, groups in ((2, 6, 3), (4, 12, 3), (3, 12, 2)):
        says = f"tp = {tp} ranks cannot share out the model's {groups} key-value heads"
        with pytest.raises(PlexError, match=says) as refused:
            check(tp, heads=heads, groups=groups)
        assert refused.value.facts["degree"] == "tp"


@pytest.mark.parametrize("cp", [2, 4])
def test_ranks_share_out_heads_of_which_some_have_copies(model: Path, cp: int) -> None:
    check_model(split_sequences(cp), with_heads(model, heads=8, groups=2))
    split = common_pb2.Parallel(tp=2, cp=cp)
    check_model(spec(backend="megatron", parallel=split), with_heads(model, heads=8, groups=2))


@pytest.mark.parametrize(("cp", "heads", "groups"), [(3, 8, 2), (6, 12, 4), (16, 8, 2)], ids=str)
def test_ranks_that_cannot_share_out_the_heads_are_refused(
    model: Path, cp: int, heads: int, groups: int
) -> None:
    says = f"cp = {cp} ranks cannot share out {heads} attention heads and {groups} key-value heads"
    with pytest.raises(PlexError, match=says) as caught:
        check_model(split_sequences(cp), with_heads(model, heads=heads, groups=groups))
    assert caught.value.facts["degree"] == "cp"


def test_tensor_ranks_share_out_their_own_heads(model: Path) -> None:
    split = spec(backend="megatron", parallel=common_pb2.Parallel(tp=2, cp=8))
    with pytest.raises(PlexError, match="cannot share out 4 attention heads and 1 key-value heads"):
        check_model(split, with_heads(model, heads=8, groups=2))


def test_an_engine_s_ranks_share_out_each_expert(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(config_of(BOTH["qwen3_moe"])))
    wide = partial(spec, backend="vllm", role="rollout")
    check_model(wide(parallel=common_pb2.Parallel(tp=2)), model)
    table = config_of(BOTH["qwen3_moe"]) | {"moe_intermediate_size": 25}
    (model / "config.json").write_text(json.dumps(table))
    with pytest.raises(PlexError, match="tp = 2 does not divide the model's 25 intermediate units"):
        check_model(wide(parallel=common_pb2.Parallel(tp=2)), model)


def split_sequences(cp: int) -> pb.DeploymentSpec:
    return spec(backend="fsdp", parallel=common_pb2.Parallel(cp=cp))


def with_heads(model: Path, *, heads: int, groups: int) -> Path:
    table = config_of(BOTH["qwen3"]) | {"num_attention_heads": heads, "num_key_value_heads": groups}
    (model / "config.json").write_text(json.dumps(table))
    return model


def test_weights_that_do_not_open_are_refused_from_their_headers(model: Path) -> None:
    place = CheckedPath(path=model, root=model.parent)
    for backend in ("megatron", "fsdp", "vllm"):
        (model / "model.safetensors").write_bytes(b"garbage " * 99)
        with pytest.raises(PlexError, match=r"its weights cannot be opened: model\.safetensors"):
            check_weights(place, {}, backend=backend)
    (model / "model.safetensors").rename(model / "other.safetensors")
    with pytest.raises(PlexError, match="directory has no model"):
        check_weights(place, {}, backend="fsdp")


def test_a_config_beyond_its_bound_is_an_unknown_model(model: Path) -> None:
    with (model / "config.json").open("ab") as file:
        os.truncate(file.fileno(), 512 << 20)
    with pytest.raises(PlexError, match="has 536870912 bytes; at most 262144 are read") as caught:
        check_model(spec(), model)
    assert code_of(caught) == ErrorCode.UNKNOWN_MODEL


def test_a_config_that_is_no_file_is_an_unknown_model(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    with pytest.raises(PlexError, match="no regular file"):
        check_model(spec(), model)
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/dev/zero")
    with pytest.raises(PlexError, match="no regular file"):
        check_model(spec(), model)


def test_shapes_are_compared_where_they_are_known_to_be_right(model: Path) -> None:
    place = CheckedPath(path=model, root=model.parent)
    save_file({"model.norm.weight": np.zeros(4, "float32")}, model / "model.safetensors")
    with pytest.raises(PlexError, match=r"'model\.norm\.weight' has shape \(4,\)"):
        check_weights(place, {"model_type": "qwen3", "hidden_size": 8}, backend="vllm")
    for table in (
        {"model_type": "deepseek_v3"},
        {"model_type": "qwen3", "quantization_config": {}},
    ):
        check_weights(place, {**table, "hidden_size": 8}, backend="vllm")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"backend": "megatron"}, "DeploymentSpec.lora"),
        ({"backend": "noop"}, "DeploymentSpec.lora"),
        ({"role": "critic"}, "DeploymentSpec.lora"),
        ({"optimizer": None}, "DeploymentSpec.lora"),
        ({"lora": pb.LoRA(rank=0, alpha=1)}, "LoRA.rank"),
        ({"lora": pb.LoRA(rank=1, alpha=float("nan"))}, "LoRA.rank"),
    ],
)
def test_adapters_are_refused_where_nothing_trains_them(
    changes: dict[str, Any], field: str
) -> None:
    plain = {"backend": "fsdp", "optimizer": pb.Optimizer(), "lora": pb.LoRA(rank=2, alpha=4)}
    check_spec(spec(**plain))
    with pytest.raises(PlexError, match="lora") as caught:
        check_spec(spec(**plain | changes))
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert caught.value.facts["field"] == field


def test_adapters_that_a_model_cannot_have_are_refused(model: Path) -> None:
    table = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**table, "hidden_size": 24, "head_dim": 2}))
    for adapters in (pb.LoRA(rank=8, alpha=1), pb.LoRA(rank=24, alpha=1, targets=["q_proj"])):
        assert check_model(spec(backend="fsdp", lora=adapters), model)
    for adapters, said in (
        (pb.LoRA(rank=9, alpha=1), "smallest side of its targets has 8"),
        (pb.LoRA(rank=25, alpha=1, targets=["q_proj"]), "has 24"),
        (pb.LoRA(rank=1, alpha=1, targets=["q_proj", "lm_head"]), "no linear layers lm_head"),
    ):
        with pytest.raises(PlexError, match=said) as caught:
            check_model(spec(backend="fsdp", lora=adapters), model)
        assert caught.value.code == ErrorCode.BAD_REQUEST


def test_an_engine_applies_adapters_that_vllm_can_and_others_are_merged(model: Path) -> None:
    table = json.loads((model / "config.json").read_text())
    sides = {"hidden_size": 24, "head_dim": 2, "vocab_size": 50}
    unembedding = pb.LoRA(rank=2, alpha=1, unembedding=True)
    for adapters, changes, is_applied in (
        (pb.LoRA(rank=2, alpha=1), {}, True),
        (unembedding, {"tie_word_embeddings": True}, True),
        (unembedding, {"tie_word_embeddings": False}, False),
        (pb.LoRA(rank=2, alpha=1), {"model_type": "gemma2"}, False),
    ):
        changed = {**table, "model_type": "qwen3", **sides, **changes}
        (model / "config.json").write_text(json.dumps(changed))
        rollout = spec(backend="vllm", role="rollout", lora=adapters)
        check_spec(rollout)
        check_model(rollout, model)
        assert rollout.HasField("lora") == is_applied
