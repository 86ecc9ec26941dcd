"""What every training backend promises, on real ranks: the contract of `backends.base.Backend`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from plexclient.specs import Parallel
from plexclient.wire import tensors
from plexclient.wire.v1 import operations_pb2, statemanager_pb2, worker_pb2
from plexsvc import lora, sizes
from plexsvc.weights import checkpoints
from tests.fakes.fake_state_client import assemble
from tests.rigs.model_families import BOTH, make_model
from tests.rigs.rank_host import Group, StartGroup
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.worker_batches import (
    Arrays,
    answered_tokens,
    errors,
    operation,
    plan,
    random_batch,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]

ONE = plan([[0, 2], [1], [3]])
TWO = plan([[0, 2], [3]], [[1], []])
GROUPS: dict[str, tuple[dict[str, Any], Any]] = {
    "noop": ({"backend": "noop"}, ONE),
    "megatron-one-rank": ({"backend": "megatron"}, ONE),
    "megatron-bf16": ({"backend": "megatron", "dtype": "bfloat16"}, ONE),
    "megatron-tp2": ({"backend": "megatron", "parallel": {"tp": 2}}, ONE),
    "megatron-pp2": ({"backend": "megatron", "parallel": {"pp": 2}}, ONE),
    "megatron-dp2": ({"backend": "megatron", "parallel": {"dp": 2}}, TWO),
    "megatron-cp2": ({"backend": "megatron", "parallel": {"cp": 2}}, ONE),
    "megatron-zero-bf16": (
        {
            "backend": "megatron",
            "dtype": "bfloat16",
            "parallel": {"dp": 2, "distributed_optimizer": True},
        },
        TWO,
    ),
    "fsdp-one-rank": ({"backend": "fsdp"}, ONE),
    "fsdp-cp2": ({"backend": "fsdp", "parallel": {"cp": 2}}, ONE),
    "fsdp-dp2-bf16": ({"backend": "fsdp", "dtype": "bfloat16", "parallel": {"dp": 2}}, TWO),
    "fsdp-lora-bf16": (
        {
            "backend": "fsdp",
            "dtype": "bfloat16",
            "parallel": {"dp": 2},
            "lora": {"rank": 4, "alpha": 8.0},
        },
        TWO,
    ),
}
TRAINING = [name for name in GROUPS if name != "noop"]
OTHERS_FIRST = [*TRAINING[1:], TRAINING[0]]
"""The same, so that every second one is another."""
WHOLE = [name for name in TRAINING if "lora" not in name]
"""Those that train all parameters."""


def run(
    group: Group,
    seq: int,
    kind: str,
    arrays: Arrays | None = None,
    split: operations_pb2.DispatchPlan | None = None,
    **fields: object,
) -> list[worker_pb2.ExecuteReply]:
    """Run one operation that must succeed; return the ranks' replies."""
    replies = group.execute(operation(seq, kind, arrays, split=split, **fields))
    assert errors(replies) == [""] * len(replies), [r.result.error.message for r in replies]
    return replies


def state(group: Group) -> list[dict[str, bytes]]:
    return group.ask("raw")


@pytest.mark.parametrize("name", GROUPS)
def test_device_bytes_are_known_before_anything_is_allocated(
    start_group: StartGroup, name: str
) -> None:
    settings, _ = GROUPS[name]
    group = start_group(initialize=False, **settings)
    before = group.ask("device_bytes")
    run(group, 0, "initialize")
    allocated = [sum(len(data) for data in regions.values()) for regions in state(group)]
    assert before == allocated


@pytest.mark.parametrize("name", GROUPS)
def test_one_rank_of_each_replica_answers_every_sequence_once_and_leaves_no_trace(
    start_group: StartGroup, name: str
) -> None:
    settings, split = GROUPS[name]
    group = start_group(**settings)
    before, batch = state(group), random_batch(0)
    replies = run(group, 1, "forward", batch, split)
    answered = sorted(s for r in replies for shard in r.result.shards for s in shard.sequences)
    assert answered == [0, 1, 2, 3]
    assert np.isfinite(answered_tokens(replies, batch)).all()
    again = run(group, 2, "forward", batch, split)
    assert state(group) == before
    assert [r.digest for r in replies] == [r.digest for r in again]


@pytest.mark.parametrize("name", [name for name in TRAINING if "bf16" in name])
def test_parking_between_backward_and_step_changes_no_bit(
    start_group: StartGroup, name: str
) -> None:
    """In float32 `tests/system/test_same_result.py` shows it of all layouts."""
    settings, split = GROUPS[name]
    ends = []
    for is_parked in (False, True):
        group = start_group(**settings)
        digests = []
        for step in range(2):
            for part in range(2):
                seq = 3 * step + part + 1
                batch = random_batch(seq)
                replies = run(group, seq, "forward_backward", batch, split, loss="ppo")
                digests += [r.digest for r in replies]
                if is_parked:
                    kept = group.ask("park")
                    assert all("grads" in regions for regions in kept)
                    group.ask("unpark")
            digests += [r.digest for r in run(group, 3 * step + 3, "step")]
            if is_parked:
                kept = group.ask("park")
                assert not any("grads" in regions for regions in kept), (
                    "clean gradients are dropped"
                )
                group.ask("unpark")
        ends.append((digests, state(group), group.ask("scalars")))
    assert ends[0] == ends[1]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("megatron-bf16", {}),
        ("megatron-tp2", {"tp": 2, "sequence_parallel": True}),
        ("megatron-pp2", {"pp": 2}),
        ("fsdp-dp2-bf16", {"dp": 2}),
        ("fsdp-cp2", {"cp": 2}),
        ("fsdp-lora-bf16", {"dp": 2}),
        ("megatron-ep2", {"dp": 2, "ep": 2}),
        ("megatron-tp2-ep2", {"tp": 2, "ep": 2, "sequence_parallel": True}),
        ("megatron-cp2", {"cp": 2}),
    ],
)
def test_recomputation_changes_no_bit_and_holds_less(
    start_group: StartGroup, odd_model: Path, tmp_path: Path, name: str, parallel: dict[str, Any]
) -> None:
    settings, split = (GROUPS | EXPERTS)[name]
    if name in EXPERTS:
        odd_model = make_model(tmp_path / "experts", BOTH["qwen3_moe"])
    ends, most = [], []
    for what in ("", "selective", "full"):
        given = {"parallel": parallel, "recompute": what, "model": str(odd_model)}
        group = start_group(**settings | given)
        pass_ = operation(1, "forward_backward", long_batch(), split=split, loss="ppo")
        most.append(max(group.ask("measured", pass_.SerializeToString())))
        passed = state(group)
        run(group, 2, "step")
        run(group, 3, "forward", random_batch(0), split)
        ends.append((passed, state(group)))
    assert ends[0] == ends[1] == ends[2]
    assert most[1] < 0.9 * most[0], most
    assert most[2] < 0.5 * most[0], most
    dtype = settings.get("dtype", "")
    config = json.loads((odd_model / "config.json").read_text())
    for what, held in zip(("", "selective", "full"), most, strict=True):
        estimate = sizes.of_pass(
            config,
            backend=settings["backend"],
            dtype=dtype,
            parallel=Parallel(**parallel),
            tokens=64 + 48,  # of the largest micro-batch
            recompute=what,
            lora=lora.Lora(**settings["lora"]) if "lora" in settings else None,
        )
        norms = 1.25 if "bf16" in name else 1.0  # on a CPU they compute in float32
        assert 0.6 * estimate <= held <= norms * estimate, (what, held, estimate)


def long_batch() -> Arrays:
    """Return four sequences whose activations are most of what a pass holds."""
    return random_batch(1, lengths=(64, 80, 48, 64))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", TRAINING)
def test_a_custom_loss_applies_the_gradients_of_the_built_in_one(
    start_group: StartGroup, name: str
) -> None:
    settings, split = GROUPS[name]
    group, batch, seq = start_group(**settings), random_batch(4), iter(range(1, 20))
    for loss in ("gspo", "ppo"):
        run(group, next(seq), "forward_backward", batch, split, loss=loss)
        wanted = [regions["grads"] for regions in state(group)]
        run(group, next(seq), "zero_grad")

        logprobs = answered_tokens(run(group, next(seq), "forward", batch, split), batch)
        own = {**batch, "grad_logprobs": own_gradient(loss, logprobs, batch)}
        run(group, next(seq), "backward", own, split)
        found = [regions["grads"] for regions in state(group)]
        run(group, next(seq), "zero_grad")
        for mine, theirs in zip(found, wanted, strict=True):
            a, b = np.frombuffer(mine, np.float32), np.frombuffer(theirs, np.float32)
            assert np.abs(b).max() > 0
            assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max(), loss


def own_gradient(loss: str, logprobs: np.ndarray, batch: Arrays) -> np.ndarray:
    """Differentiate the loss with respect to the logprobs by hand."""
    gaps, (low, high) = logprobs - batch["logprobs"], (0.8, 1.2)
    if loss == "gspo":
        low, high = 1 - 3e-4, 1 + 4e-4
        for part in map(slice, batch["cu_seqlens"][:-1], batch["cu_seqlens"][1:]):
            gaps[part] = np.average(gaps[part], weights=batch["mask"][part])
    ratio = np.exp(gaps)
    gradient = -ratio * batch["advantages"] * batch["mask"]
    up, down = batch["advantages"] > 0, batch["advantages"] < 0
    gradient[(up & (ratio > high)) | (down & (ratio < low))] = 0.0
    return gradient.astype(np.float32)


@pytest.mark.parametrize(
    ("backend", "family", "parallel", "split"),
    [
        ("megatron", "qwen3", {"dp": 2}, TWO),
        ("fsdp", "qwen3", {"dp": 2}, TWO),
        ("fsdp", "qwen3", {"dp": 2, "cp": 2}, TWO),
        ("megatron", "qwen3_moe", {"dp": 2, "ep": 2}, TWO),
        (
            "megatron",
            "qwen3_moe",
            {"dp": 4, "ep": 2, "distributed_optimizer": True},
            plan([[0]], [[1]], [[2]], [[3]]),
        ),
        (
            "megatron",
            "qwen3_moe",
            {"dp": 2, "cp": 2, "ep": 4, "distributed_optimizer": True},
            TWO,
        ),
        ("megatron", "qwen3_moe", {"tp": 2, "ep": 2, "sequence_parallel": True}, ONE),
        (
            "megatron",
            "qwen3_moe",
            {
                "tp": 2,
                "dp": 2,
                "ep": 2,
                "sequence_parallel": True,
                "distributed_optimizer": True,
            },
            TWO,
        ),
    ],
)
def test_gradients_of_replicas_equal_those_of_one_rank(
    start_group: StartGroup,
    tmp_path: Path,
    backend: str,
    family: str,
    parallel: dict[str, Any],
    split: operations_pb2.DispatchPlan,
) -> None:
    model, results = str(make_model(tmp_path / "model", BOTH[family])), []
    for degrees, dealt in (({}, ONE), (parallel, split)):
        group = start_group(backend=backend, model=model, parallel=degrees)
        run(group, 1, "forward_backward", random_batch(3), dealt, loss="ppo")
        metrics = run(group, 2, "step", lr=1e-3, clip_grad_norm=1e-3)
        norm = next(r.result.metrics["grad_norm"] for r in metrics if r.result.metrics)
        results.append((norm, assemble(group.ask("held"), "exp_avg")))
    (norm_one, one), (norm_two, two) = results
    assert norm_two == pytest.approx(norm_one, rel=1e-5)
    for name, moment in one.items():
        assert np.abs(two[name] - moment).max() <= 1e-5 * max(np.abs(moment).max(), 1e-8)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", OTHERS_FIRST)
def test_saved_state_continues_in_another_group_bit_for_bit(
    start_group: StartGroup, name: str, tmp_path: Path
) -> None:
    settings, split = GROUPS[name]
    first = start_group(**settings)
    run(first, 1, "forward_backward", random_batch(1), split, loss="ppo")
    run(first, 2, "step")
    save(first, tmp_path)

    second = start_group(**settings)
    run(second, 1, "load", path=str(tmp_path), root=str(tmp_path), optimizer=True)
    for group in (first, second):
        run(group, 3, "forward_backward", random_batch(2), split, loss="ppo")
        run(group, 4, "step")
    for kind in ("param", "exp_avg", "exp_avg_sq"):
        wanted, found = (assemble(g.ask("held"), kind) for g in (first, second))
        assert all(np.array_equal(found[tensor], wanted[tensor]) for tensor in wanted)


def save(group: Group, directory: Path) -> None:
    """Write a checkpoint of a group that made one step."""
    held = group.ask("held")
    params = assemble(held, "param")
    scales = assemble(held, lora.SCALE_KIND)
    if scales:
        shapes = {name: values.shape for name, values in params.items()}
        table = lora.peft_config(shapes, scale=scales[lora.SCALE_NAME].item(), base="")
        (directory / lora.CONFIG_FILE).write_text(json.dumps(table))
    save_file(params, directory / (lora.WEIGHTS_FILE if scales else "model.safetensors"))
    moments = {
        f"{kind}/{tensor}": values
        for kind in ("exp_avg", "exp_avg_sq", "master")
        for tensor, values in assemble(held, kind).items()
    }
    save_file(moments, directory / "optimizer.safetensors")
    (directory / "plex_state.json").write_text('{"scalars": {"adam_step": 1}}')
    checkpoints.seal(directory, {})


@pytest.mark.parametrize("by", ["megatron-tp2", "megatron-pp2", "fsdp-one-rank", "fsdp-dp2-bf16"])
def test_masters_travel_through_float32_and_back(
    start_group: StartGroup, by: str, tmp_path: Path
) -> None:
    half = start_group(dtype="bfloat16")
    run(half, 1, "forward_backward", random_batch(1), ONE, loss="ppo")
    run(half, 2, "step")
    masters = assemble(half.ask("held"), "master")
    assert any((values != rounded(values)).any() for values in masters.values())
    whole, again = start_group(**GROUPS[by][0]), start_group(dtype="bfloat16")
    for number, (source, target) in enumerate(((half, whole), (whole, again))):
        place = tmp_path / str(number)
        place.mkdir()
        save(source, place)
        run(target, 1, "load", path=str(place), root=str(place), optimizer=True)
    params = assemble(whole.ask("held"), "param")
    assert params.keys() == masters.keys()
    assert all(np.array_equal(params[tensor], masters[tensor]) for tensor in masters)
    assert state(again) == [
        {**regions, "grads": state(again)[0]["grads"]} for regions in state(half)
    ]


EXPERTS: dict[str, tuple[dict[str, Any], Any]] = {
    "megatron-pp2": ({"backend": "megatron", "parallel": {"pp": 2}}, ONE),
    "megatron-ep2": ({"backend": "megatron", "parallel": {"dp": 2, "ep": 2}}, TWO),
    "megatron-ep2-zero-bf16": (
        {
            "backend": "megatron",
            "dtype": "bfloat16",
            "parallel": {"dp": 2, "ep": 2, "distributed_optimizer": True},
        },
        TWO,
    ),
    "megatron-cp2-ep2": (
        {"backend": "megatron", "parallel": {"cp": 2, "ep": 2, "distributed_optimizer": True}},
        ONE,
    ),
    "megatron-tp2-ep2": (
        {"backend": "megatron", "parallel": {"tp": 2, "ep": 2, "sequence_parallel": True}},
        ONE,
    ),
    "fsdp-dp2": ({"backend": "fsdp", "parallel": {"dp": 2}}, TWO),
    "fsdp-cp2": ({"backend": "fsdp", "parallel": {"cp": 2}}, ONE),
}
"""Layouts of a model with experts, which one rank of megatron then goes on with."""


@pytest.mark.every(2)
@pytest.mark.parametrize("name", EXPERTS)
def test_experts_keep_their_bits_when_parked_and_in_another_layout(
    start_group: StartGroup, tmp_path: Path, name: str
) -> None:
    model = str(make_model(tmp_path / "model", BOTH["qwen3_moe"]))
    (settings, split), place = EXPERTS[name], tmp_path / "saved"
    groups, digests = [start_group(**settings, model=model) for _ in range(2)], []
    for number, group in enumerate(groups):
        replies = []
        for seq in (1, 3):
            replies += run(group, seq, "forward_backward", random_batch(seq), split, loss="ppo")
            if number:
                group.ask("park")
                group.ask("unpark")
            replies += run(group, seq + 1, "step")
        digests.append([reply.digest for reply in replies])
    assert digests[0] == digests[1]
    assert state(groups[0]) == state(groups[1])
    group = groups[1]
    place.mkdir()
    save(group, place)
    one = start_group(backend="megatron", model=model, dtype=settings.get("dtype", ""))
    run(one, 1, "load", path=str(place), root=str(place), optimizer=True)
    for kind in ("param", "exp_avg", "exp_avg_sq", "master"):
        wanted, found = (assemble(g.ask("held"), kind) for g in (group, one))
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[tensor], wanted[tensor]) for tensor in wanted)
    batch = random_batch(7)
    logprobs = [
        answered_tokens(run(g, 9, "forward", batch, s), batch)
        for g, s in ((group, split), (one, ONE))
    ]
    assert np.abs(logprobs[0] - logprobs[1]).max() <= (0.1 if "bf16" in name else 1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_a_pulled_version_replaces_the_parameters(
    start_group: StartGroup, name: str, tmp_path: Path
) -> None:
    settings, split = GROUPS[name]
    other = make_qwen3(tmp_path / "other", seed=9, vocab=51, layers=4)
    source = start_group(model=str(other))
    ((wire, data),) = source.ask("publish", "job/source", 5)

    target = start_group(**settings, role="reference", optimizer=None)
    target.ask("adopt_version", wire, data)
    replies = target.execute(
        operation(1, "pull", source_deployment_id="job/source", version=5), on_this_node(5)
    )
    assert errors(replies) == [""] * len(replies)
    wanted = assemble(source.ask("held"), "param")
    found = assemble(target.ask("held"), "param")
    assert set(found) == set(wanted)
    if "bf16" in name:
        wanted = {tensor: rounded(values) for tensor, values in wanted.items()}
    assert all(np.array_equal(found[tensor], wanted[tensor]) for tensor in wanted)
    assert {piece_kind for rank in target.ask("held") for piece_kind, _ in rank} == {"param"}
    run(target, 2, "forward", random_batch(0), split)
    refused = target.execute(
        operation(3, "forward_backward", random_batch(0), split=split, loss="ppo")
    )
    assert set(errors(refused)) == {"bad_request"}


def on_this_node(version: int) -> statemanager_pb2.PublishedVersion:
    """Return a version that each rank's own state manager holds."""
    holder = statemanager_pb2.VersionHolder()
    return statemanager_pb2.PublishedVersion(
        deployment_id="job/source", version=version, holders=[holder]
    )


def rounded(values: np.ndarray) -> np.ndarray:
    """Return values as bfloat16 holds them."""
    found: np.ndarray = torch.from_numpy(values).bfloat16().float().numpy()
    return found


def test_a_version_that_was_altered_is_refused(start_group: StartGroup) -> None:
    group = start_group(role="reference", optimizer=None)
    ((wire, data),) = group.ask("publish", "job/source", 1)
    group.ask("adopt_version", wire, bytes([data[0] ^ 1]) + data[1:])
    replies = group.execute(
        operation(1, "pull", source_deployment_id="job/source", version=1), on_this_node(1)
    )
    assert errors(replies) == ["checksum_mismatch"]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", OTHERS_FIRST)
def test_gradients_that_are_not_finite_break_the_window_and_change_nothing(
    start_group: StartGroup, name: str
) -> None:
    settings, split = GROUPS[name]
    group = start_group(**settings)
    trained = "adapter" if "lora" in name else "params"
    params = [regions[trained] for regions in state(group)]
    batch = random_batch(0)
    batch["weights"] = np.full_like(batch["weights"], 3e38)
    group.execute(operation(1, "forward_backward", batch, split=split, loss="cross_entropy"))
    assert set(errors(group.execute(operation(2, "step")))) == {"window_broken"}
    refused = group.execute(
        operation(3, "forward_backward", random_batch(0), split=split, loss="cross_entropy")
    )
    assert set(errors(refused)) == {"window_broken"}
    assert [regions[trained] for regions in state(group)] == params
    run(group, 4, "zero_grad")
    run(group, 5, "forward_backward", random_batch(0), split, loss="cross_entropy")
    run(group, 6, "step")
    assert [regions[trained] for regions in state(group)] != params


@pytest.mark.parametrize(
    ("name", "owner"),
    [("megatron-tp2", 0), ("megatron-pp2", 1), ("megatron-dp2", 0), ("fsdp-dp2-bf16", 1)],
)
def test_a_rank_without_room_for_its_answer_refuses_for_its_group(
    start_group: StartGroup, tmp_path: Path, name: str, owner: int
) -> None:
    settings, _ = GROUPS[name]
    model = str(make_qwen3(tmp_path / "shallow", seed=3, vocab=51, layers=2))
    # bfloat16 is slow on some CPUs.
    group = start_group(**{**settings, "dtype": "float32", "model": model})
    # The owner's answer, of 18,000 tokens, goes by memory; in dp the other rank has one sequence.
    batch = random_batch(0, lengths=(100,) * 181)
    many, few = [list(range(at, at + 10)) for at in range(0, 180, 10)], [[180], *[[]] * 17]
    split = plan(*((few, many) if owner else (many, few))) if "dp" in name else plan([*many, [180]])
    made = operation(1, "forward_backward", split=split, loss="ppo", return_logprobs=True)
    group.ask("stage", b"inputs", tensors.encode(batch).SerializeToString())
    made.payload.staged.staging_id = b"inputs"
    before = state(group)
    group.ask("fill_staging", owner)
    assert errors(group.execute(made)) == ["staging_full"] * 2
    assert state(group) == before
    assert errors(group.execute(made)) == [""] * 2
    once = [regions["grads"] for regions in state(group)]
    run(group, 2, "zero_grad")
    made.operation_id, made.seq = b"again-----------", 3
    assert errors(group.execute(made)) == [""] * 2
    assert [regions["grads"] for regions in state(group)] == once


@pytest.mark.parametrize("name", ["megatron-bf16", "megatron-pp2", "fsdp-dp2-bf16"])
def test_a_checkpoint_of_another_model_replaces_nothing(
    start_group: StartGroup, tmp_path: Path, name: str
) -> None:
    settings, split = GROUPS[name]
    group = start_group(**settings)
    shallow = make_qwen3(tmp_path / "shallow", seed=5, vocab=51, layers=2)
    run(group, 1, "forward_backward", random_batch(0), split, loss="cross_entropy")
    before = state(group)
    assert errors(group.execute(operation(2, "load", path=str(shallow), root=str(shallow)))) == [
        "unknown_model"
    ] * len(before)
    assert state(group) == before
    run(group, 3, "step")


def test_a_staged_batch_and_a_staged_answer_equal_inline_ones(start_group: StartGroup) -> None:
    group = start_group()
    batch = random_batch(0, lengths=(400,) * 50)
    split = plan([[i] for i in range(50)])
    staged = operation(1, "forward", split=split)
    bundle = tensors.encode(batch)
    group.ask("stage", b"inputs----------", bundle.SerializeToString())
    staged.payload.staged.staging_id = b"inputs----------"
    (reply,) = group.execute(staged)
    assert not reply.result.error.code, reply.result.error.message
    (shard,) = reply.result.shards
    assert shard.payload.staged.node_ids == ["node"]
    (data,) = group.ask("staged", shard.payload.staged.staging_id)
    found = tensors.views(shard.payload.staged.tensors, data)["logprobs"]
    one = random_batch(0, lengths=(400,) * 50)
    first = {
        name: (array[:401] if name == "cu_seqlens" else array[:400]) for name, array in one.items()
    }
    first["cu_seqlens"] = np.array([0, 400], np.int32)
    alone = answered_tokens(run(group, 2, "forward", first, plan([[0]])), first)
    assert np.array_equal(found[:400], alone)


def test_a_critic_regresses_values_on_its_own_head(start_group: StartGroup) -> None:
    ranks = {}
    layouts: dict[str, dict[str, Any]] = {
        "one": {},
        "tp2": {"parallel": {"tp": 2}},
        "pp2": {"parallel": {"pp": 2}},
        "cp2": {"parallel": {"cp": 2}, "backend": "fsdp"},
    }
    for name, settings in layouts.items():
        group = start_group(role="critic", **settings)
        batch = random_batch(1)
        values = answered_tokens(run(group, 1, "forward", batch, ONE), batch, "values")
        assert not values.any(), "the head starts at zero"
        for step in range(2):
            run(group, 2 * step + 2, "forward_backward", batch, ONE, loss="value_mse")
            run(group, 2 * step + 3, "step", lr=1e-2, eps=1e-3)
        values = answered_tokens(run(group, 6, "forward", batch, ONE), batch, "values")
        assert values.any()
        ranks[name] = (values, assemble(group.ask("held"), "param")["value_head.weight"])
        refused = group.execute(operation(7, "forward_backward", batch, split=ONE, loss="ppo"))
        assert set(errors(refused)) == {"bad_request"}
    for name in layouts:
        assert np.abs(ranks[name][0] - ranks["one"][0]).max() <= 1e-5
        assert np.abs(ranks[name][1] - ranks["one"][1]).max() <= 1e-6


@pytest.mark.every(4)
@pytest.mark.parametrize("name", [name for name in TRAINING if "one-rank" not in name])
def test_a_lack_of_memory_at_any_allocation_is_an_answer_and_the_job_goes_on(
    start_group: StartGroup, name: str
) -> None:
    settings, split = GROUPS[name]
    group, alone = (start_group(**settings) for _ in range(2))
    batch = random_batch(1)
    own = {**batch, "grad_logprobs": np.ones(batch["tokens"].size, np.float32)}
    made = {
        "forward": lambda seq: operation(seq, "forward", batch, split=split),
        "forward_backward": lambda seq: operation(
            seq, "forward_backward", batch, split=split, loss="ppo"
        ),
        "backward": lambda seq: operation(seq, "backward", own, split=split),
        "step": lambda seq: operation(seq, "step"),
    }
    seq = iter(range(1, 100_000))
    run(alone, next(seq), "forward_backward", batch, split, loss="ppo")  # the first allocates more
    run(alone, next(seq), "zero_grad")
    for kind in ("forward_backward", "forward", "backward", "step", "zero_grad"):
        counts = alone.ask("allocations", made.get(kind, clear)(next(seq)).SerializeToString())
        for rank, count in enumerate(counts if kind in made else []):
            for at in points(count):
                run_out(group, made, kind, rank=rank, at=at, seq=seq)
    for kind in ("forward_backward", "forward", "backward", "step"):
        assert not any(errors(group.execute(made[kind](next(seq)))))
    run(alone, next(seq), "zero_grad")
    run(group, next(seq), "zero_grad")
    assert state(group) == state(alone)


@pytest.mark.parametrize("backend", ["megatron", "fsdp"])
def test_a_lack_of_memory_all_along_one_rank_is_an_answer_and_the_job_goes_on(
    start_group: StartGroup, tmp_path: Path, backend: str, every: Callable[[int], int]
) -> None:
    """One layer and one sequence: the same code as of many, in a tenth of the allocations."""
    model = str(make_qwen3(tmp_path / "shallow", seed=3, vocab=51, layers=1))
    group, alone = (start_group(backend=backend, model=model) for _ in range(2))
    batch, split = random_batch(1, lengths=(6,)), plan([[0]])
    own = {**batch, "grad_logprobs": np.ones(batch["tokens"].size, np.float32)}
    made = {
        "forward": lambda seq: operation(seq, "forward", batch, split=split),
        "forward_backward": lambda seq: operation(
            seq, "forward_backward", batch, split=split, loss="ppo"
        ),
        "backward": lambda seq: operation(seq, "backward", own, split=split),
        "step": lambda seq: operation(seq, "step"),
    }
    seq = iter(range(1, 100_000))
    for kind in ("forward_backward", "forward", "backward", "step"):
        run(alone, next(seq), "zero_grad")
        assert not any(errors(alone.execute(made[kind](next(seq)))))  # it allocates more
        (count,) = alone.ask("allocations", made[kind](next(seq)).SerializeToString())
        assert count
        for at in range(0, count, every(14)):
            run_out(group, made, kind, rank=0, at=at, seq=seq)
    fresh = start_group(backend=backend, model=model)
    for one in (group, fresh):
        for kind in ("forward_backward", "step"):
            assert not any(errors(one.execute(made[kind](next(seq)))))
    assert state(group) == state(fresh)


def points(count: int) -> list[int]:
    """Return some of `count` allocations: the first, the last, and one between."""
    return sorted({0, count // 2, count - 1}) if count else []


def clear(seq: int) -> operations_pb2.Operation:
    return operation(seq, "zero_grad")


def run_out(
    group: Group,
    made: Mapping[str, Callable[[int], operations_pb2.Operation]],
    kind: str,
    *,
    rank: int,
    at: int,
    seq: Iterator[int],
) -> None:
    """Run an operation in an open window; a rank lacks memory at its allocation number `at`."""
    assert not any(errors(group.execute(made["forward_backward"](next(seq)))))
    before = state(group)
    group.ask("run_out", rank, at)
    replies = group.execute(made[kind](next(seq)))
    assert errors(replies) == ["out_of_memory"] * len(replies), (kind, rank, at, replies)
    facts = replies[0].result.error.facts
    assert facts["asked_bytes"] == "4096"
    assert 0 < int(facts["free_bytes"]) <= int(facts["total_bytes"])
    after = state(group)
    if after != before:
        assert kind != "forward"
        goes_on = group.execute(made["forward_backward"](next(seq)))
        assert errors(goes_on) == ["window_broken"] * len(replies)
    for regions, regions_before in zip(after, before, strict=True):
        assert {**regions, "grads": b""} == {**regions_before, "grads": b""}
    run(group, next(seq), "zero_grad")


def test_two_runs_of_the_same_program_agree_bit_for_bit(start_group: StartGroup) -> None:
    ends = []
    for _ in range(2):
        group = start_group(parallel={"tp": 2})
        run(group, 1, "forward_backward", random_batch(1), ONE, loss="cispo")
        run(group, 2, "step")
        ends.append(state(group))
    assert ends[0] == ends[1]
