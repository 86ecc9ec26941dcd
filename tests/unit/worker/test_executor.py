"""Order, records, the accumulation window and failures of one rank, on a fake backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from plexclient.specs import Parallel
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexsvc import sizes
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.executor import Executor
from plexsvc.worker.operations import operation_seed
from tests.fakes.fake_backend import ONE, CountingClock, Rank
from tests.rigs.model_families import BOTH, config_of
from tests.rigs.worker_batches import operation, random_batch


def test_a_failed_pass_breaks_the_window_until_zero_grad() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    rank.backend.failure = ValueError("out of luck")
    failed = rank.run(rank.train(2))
    assert failed.reply.result.error.code == "internal"
    assert "out of luck" in failed.reply.result.error.message
    assert "ValueError" in failed.reply.log_tail
    assert not failed.must_exit
    assert rank.code(rank.train(3)) == "window_broken"
    assert rank.code(operation(4, "step")) == "window_broken"
    assert rank.code(operation(5, "forward", random_batch(0), split=ONE)) == ""
    assert rank.backend.calls == ["forward_backward", "forward_backward"]
    assert rank.code(operation(6, "zero_grad")) == ""
    assert rank.code(rank.train(7)) == ""
    assert rank.code(operation(8, "step")) == ""


def test_validation_comes_before_mutation_and_leaves_the_window_whole() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    broken = random_batch(0) | {"cu_seqlens": random_batch(0)["cu_seqlens"][:-1]}
    for seq, made in enumerate(
        (
            operation(2, "forward_backward", broken, split=ONE, loss="cross_entropy"),
            operation(3, "forward_backward", random_batch(0), split=ONE, loss="nonsense"),
            operation(4, "forward_backward", random_batch(0), loss="cross_entropy"),
            operation(5, "forward_backward", split=ONE, loss="cross_entropy"),
            operation(6, "backward", random_batch(0), split=ONE),
        ),
        start=2,
    ):
        reply = rank.run(made).reply
        assert reply.result.state == operations_pb2.OPERATION_STATE_REFUSED
        assert reply.applied_seq == seq, "a final refusal consumes its number"
    assert rank.backend.calls == ["forward_backward"]
    assert rank.code(operation(7, "step")) == ""


def test_a_rank_asks_to_exit_only_where_a_peer_is_dead_or_nobody_starts_over() -> None:
    rank = Rank(world_size=2)
    rank.backend.failure = RuntimeError("half a thought")
    assert not rank.run(rank.train(1)).must_exit
    rank = Rank(world_size=2)
    rank.backend.failure = RuntimeError("gloo: connection closed by peer")
    rank.executor._peers = Mock(agree=lambda refusal: refusal, say_why=lambda *_: None)
    assert rank.run(rank.train(1)).must_exit
    rank = Rank(world_size=2)
    rank.backend.failure = RuntimeError("half a thought")
    rank.executor._peers = Mock(agree=lambda refusal: refusal, say_why=lambda _, told: told)
    rank.executor._peers.leave.side_effect = RuntimeError("no peer came")
    assert rank.run(rank.train(1)).must_exit


def test_a_lack_of_memory_is_told_with_its_numbers() -> None:
    rank = Rank()
    rank.backend.failure = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 8192 bytes. Error code 12 (Cannot allocate memory)"
    )
    error = rank.run(rank.train(1)).reply.result.error
    assert (error.code, error.retryable) == ("out_of_memory", False)
    assert error.facts["asked_bytes"] == "8192"
    assert 0 < int(error.facts["free_bytes"]) <= int(error.facts["total_bytes"])
    assert "call zero_grad" in error.message
    assert rank.code(rank.train(2)) == "window_broken"
    assert rank.code(operation(3, "zero_grad")) == ""
    assert rank.code(rank.train(4)) == ""


def test_a_lack_of_room_ends_a_build() -> None:
    rank = Rank(incarnation=2)
    rank.executor = Executor(rank.config, rank.backend, clock=CountingClock())
    crowded = PlexError(ErrorCode.NO_ROOM, "device 0: 9 bytes needed, 5 free")
    memory = Mock(**{"open_version.side_effect": crowded, "allocate.side_effect": crowded})
    rank.executor.build(memory)
    request = worker_pb2.ExecuteRequest(operation=operation(0, "initialize"))
    request.published.holders.add()
    error = rank.executor.execute(request).reply.result.error
    assert (error.code, error.retryable) == ("internal", False)
    assert "9 bytes needed" in error.message


@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("tokens", np.full(24, -7, np.int32), "'tokens' is -7 at position 0"),
        ("target_tokens", np.full(24, -1, np.int32), "'target_tokens' is -1"),
        ("weights", np.zeros(23, np.float32), "'weights' has 23 entries"),
        ("cu_seqlens", np.array([0, 5, 5, 24], np.int32), "sequence 1 is empty"),
        ("cu_seqlens", np.array([0, 5, 23], np.int32), "24 tokens"),
    ],
)
def test_a_bad_batch_is_refused_by_name_before_the_backend_sees_it(
    name: str, value: np.ndarray, fragment: str
) -> None:
    rank = Rank()
    arrays = random_batch(1) | {name: value}
    made = operation(1, "forward_backward", arrays, split=ONE, loss="cross_entropy")
    error = rank.run(made).reply.result.error
    assert (error.code, rank.backend.calls) == ("bad_batch", [])
    assert fragment in error.message
    arrays.pop(name)
    made = operation(2, "forward_backward", arrays, split=ONE, loss="cross_entropy")
    assert f"array '{name}' is required and missing" in rank.run(made).reply.result.error.message
    assert rank.code(rank.train(3)) == ""


def test_a_step_that_fails_half_way_is_the_end_of_the_rank() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    rank.backend.failure_of_writing = RuntimeError("half of the weights are written")
    failed = rank.run(operation(2, "step"))
    assert failed.reply.result.error.code == "internal"
    assert failed.must_exit
    rank.backend.failure = PlexError(ErrorCode.WINDOW_BROKEN, "parameters are unchanged")
    assert rank.code(operation(3, "zero_grad")) == ""
    rank.backend.failure_of_writing = None
    assert not rank.run(operation(4, "step")).must_exit


def test_steps_take_the_deployments_hyper_parameters_unless_told_otherwise() -> None:
    rank = Rank()
    rank.run(operation(1, "step"))
    rank.run(operation(2, "step", lr=0.0, beta1=0.5))
    assert [hyper.lr for hyper in rank.backend.hypers] == [0.5, 0.0]
    assert [hyper.beta1 for hyper in rank.backend.hypers] == [0.9, 0.5]
    assert [hyper.weight_decay for hyper in rank.backend.hypers] == [0.1, 0.1]


def test_the_same_operation_on_the_same_state_has_the_same_digest_and_seed() -> None:
    first, second = Rank(seed=3), Rank(seed=3)
    replies = [rank.run(rank.train(1)).reply for rank in (first, second)]
    assert replies[0].digest == replies[1].digest
    assert len(replies[0].digest) == 16
    assert first.backend.seeds == second.backend.seeds
    assert first.backend.seeds[-1] == operation_seed(3, 1)
    assert Rank(seed=4).backend.seeds != first.backend.seeds[:1]
    other = operation(1, "forward_backward", random_batch(9), split=ONE, loss="cross_entropy")
    assert Rank(seed=3).run(other).reply.digest != replies[0].digest


def test_an_export_says_that_clean_gradients_need_not_survive() -> None:
    rank = Rank()
    rank.run(rank.train(4))
    report = rank.executor.export()
    assert report.applied_seq == 4
    assert report.scalars == {"adam_step": 0}
    rank.executor.restored({"adam_step": 12})
    assert rank.executor.export().scalars == {"adam_step": 12}


def test_an_export_beside_an_operation_is_of_the_last_one_that_wrote_weights() -> None:
    rank = Rank()
    rank.run(rank.train(1))
    rank.run(operation(2, "step"))
    written = rank.executor.export()
    rank.run(rank.train(3))
    beside = rank.executor.export(beside=True)
    assert (beside.applied_seq, beside.scalars) == (2, written.scalars)
    assert rank.executor.export().applied_seq == 3


def test_a_reference_trains_nothing() -> None:
    rank = Rank(role="reference", optimizer=None)
    for made in (rank.train(1), operation(2, "step"), operation(3, "zero_grad")):
        assert rank.code(made) == "bad_request"
    assert rank.backend.calls == []


@pytest.mark.parametrize("table", [{"backend": 3}, {"colour": "red"}, {"parallel": {"tp": "two"}}])
def test_a_wrong_configuration_names_the_key(table: dict[str, Any]) -> None:
    with pytest.raises(PlexError) as caught:
        Rank(**table)
    assert next(iter(table)) in caught.value.message


def test_outputs_travel_as_a_shard_when_asked_for() -> None:
    rank = Rank()
    made = rank.train(1)
    made.forward_backward.return_logprobs = True
    (shard,) = rank.run(made).reply.result.shards
    assert list(shard.sequences) == [0, 1, 2, 3]
    assert torch.get_num_threads() == 1


def test_a_rank_that_is_asked_what_became_of_an_operation_runs_nothing() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    step = operation(2, "step")
    step.position = "9"
    asked = worker_pb2.ExecuteRequest(operation=step, is_asked=True)
    never = rank.executor.execute(asked).reply
    assert never.result.error.code == "not_found"
    assert rank.executor.ledger.applied_seq == 1
    done = rank.run(step).reply
    assert rank.executor.execute(asked).reply == done
    assert done.position == "9"
    assert rank.executor.ledger.applied_seq == 2


@pytest.mark.parametrize(
    ("changes", "recompute"),
    [({}, ""), ({"recompute": "selective"}, "selective"), ({"optimizer": None}, "full")],
)
def test_a_rank_on_a_gpu_says_what_its_passes_take_and_leaves_the_room_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], recompute: str
) -> None:
    table = config_of(BOTH["qwen3"])
    (tmp_path / "config.json").write_text(json.dumps(table))
    rank = Rank(backend="fsdp", model=str(tmp_path), micro_batch_tokens=512, **changes)
    assert rank.executor.pass_bytes == 0, "on a CPU no device holds them"
    assert Rank(backend="noop").executor.pass_bytes == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rank.executor.pass_bytes == sizes.of_pass(
        table,
        backend="fsdp",
        dtype="float32",
        parallel=Parallel(),
        tokens=512,
        recompute=recompute,
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", emptied := Mock())
    rank.run(operation(1, "forward", random_batch(0), split=ONE))
    assert emptied.call_count == 1
