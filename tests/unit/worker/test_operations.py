"""Operations of ranks on faulty machines: refused without a trace, or recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plexclient.wire import tensors
from plexclient.wire.v1 import worker_pb2
from plexsvc.scheduler.ledger.results import merge
from plexsvc.weights import checkpoints
from tests.fakes.fake_backend import Rank
from tests.fakes.fake_faulty_group import LONG, FaultyGroup, staged_batch
from tests.rigs.faults import ERRORS
from tests.rigs.worker_batches import plan, random_batch


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file({"w": torch.full((4,), 7.0)}, tmp_path / "model.safetensors")
    save_file({"exp_avg/w": torch.full((4,), 8.0)}, tmp_path / "optimizer.safetensors")
    (tmp_path / "plex_state.json").write_text('{"scalars": {"adam_step": 3}}')
    checkpoints.seal(tmp_path, {})
    return tmp_path


FAULTY_KINDS = [
    "forward",
    "forward_backward",
    "backward",
    "step",
    "zero_grad",
    "load",
    "pull",
]


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", FAULTY_KINDS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_at_any_call_leaves_an_operation_refused_or_recorded(
    checkpoint: Path, kind: str, error: str, size: int
) -> None:
    clean = FaultyGroup(size, checkpoint)
    for faults in clean.faults:
        faults.arm()
    assert clean.codes(clean.made(2, kind)) == [""] * size
    assert {"recorded", "check_order", "begin", "finish", "agree"} < set(clean.faults[0].calls)
    for rank in range(size):
        for at in range(len(clean.faults[rank].calls)):
            for is_after in (False, True):
                group = FaultyGroup(size, checkpoint)
                group.faults[rank].arm(at, is_after=is_after, error=error)
                check_fault(group, kind, wanted=clean.state())
                group.pool.shutdown()
    clean.pool.shutdown()


def check_fault(group: FaultyGroup, kind: str, *, wanted: list[list[float]]) -> None:
    """Run `kind` with a fault: nothing has changed and it can run, or it is over and says so.

    A rank that must exit takes its group with it, and nobody trains on.
    """
    before, staged = group.state(), group.staged()
    made = group.made(2, kind)
    outcomes = group.run(made)
    for faults in group.faults:
        faults.is_armed = False
    ends = [outcome.reply.result.error for outcome in outcomes if outcome.must_exit]
    if ends:
        assert all(error.code and not error.retryable for error in ends)
        return
    merged = merge(made.operation_id, [outcome.reply for outcome in outcomes])
    for executor, outcome in zip(group.executors, outcomes, strict=True):  # without its peers
        again = executor.execute(worker_pb2.ExecuteRequest(operation=made, attempt=group.attempt))
        assert again.reply.result == outcome.reply.result, "a repeat is answered alike"
    if merged.error.retryable:
        assert group.state() == before
        if not any(faults.lost_its_room for faults in group.faults):
            assert group.staged() == staged, "room for the answer was given back"
        assert group.codes(made) == [""] * len(outcomes), "its number is free"
        assert group.state() == wanted
        return
    assert all(executor.ledger.applied_seq == 2 for executor in group.executors)
    is_changed = group.state() != (before if merged.HasField("error") else wanted)
    goes_on = group.codes(group.made(3, "forward_backward"))
    assert not is_changed or goes_on == ["window_broken"] * len(outcomes)
    assert goes_on == ["window_broken"] * len(outcomes) or not any(goes_on)


def test_room_for_the_answer_comes_before_the_gradients(checkpoint: Path) -> None:
    group = FaultyGroup(1, checkpoint)
    group.faults[0].arm()
    group.run(group.made(2, "forward_backward"))
    calls = group.faults[0].calls
    assert calls.index("create_staged") < calls.index("agree") < calls.index("begin")
    assert calls.index("begin") < calls.index("forward_backward") < calls.index("seal_staged")
    group.pool.shutdown()


def test_a_damaged_batch_is_refused_by_all_and_dropped_where_it_lies(checkpoint: Path) -> None:
    group = FaultyGroup(2, checkpoint)
    made = group.made(2, "forward_backward")
    specs, good = staged_batch()
    made.payload.checksum = tensors.checksum([good])
    group.clients[1].staged[b"inputs"] = (specs, bytearray([good[0] ^ 1]) + good[1:])
    before = group.state()
    assert group.codes(made) == ["checksum_mismatch"] * 2
    assert [b"inputs" in client.staged for client in group.clients] == [True, False]
    assert group.codes(made) == ["unavailable"] * 2, "it is not there: to be sent again"
    assert group.state() == before
    group.clients[1].staged[b"inputs"] = staged_batch()
    assert group.codes(made) == [""] * 2
    group.pool.shutdown()


def test_a_damaged_inline_batch_is_refused() -> None:
    rank = Rank()
    made = rank.train(1)
    made.payload.checksum = tensors.checksum([made.payload.inline.data])
    assert rank.code(made) == ""
    made.operation_id, made.seq = b"another---------", 2
    made.payload.inline.data = made.payload.inline.data[:-1] + b"?"
    assert rank.code(made) == "checksum_mismatch"
    assert rank.backend.calls == ["forward_backward"]


@pytest.mark.parametrize("lengths", [(5, 9, 3, 7), LONG])
def test_an_answer_carries_the_checksum_of_its_bytes(
    checkpoint: Path, lengths: tuple[int, ...]
) -> None:
    group = FaultyGroup(1, checkpoint)
    made = group.made(2, "forward")
    made.plan.CopyFrom(plan([list(range(len(lengths)))]))
    made.payload.inline.CopyFrom(tensors.encode(random_batch(0, lengths)))
    (outcome,) = group.run(made)
    payload = outcome.reply.result.shards[0].payload
    is_staged = payload.WhichOneof("form") == "staged"
    assert is_staged == (lengths == LONG)
    staged = group.clients[0].staged
    data = staged[payload.staged.staging_id][1] if is_staged else payload.inline.data
    assert payload.checksum == tensors.checksum([data])
    group.pool.shutdown()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "plex_state.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_load_of_a_damaged_file_changes_nothing(checkpoint: Path, name: str, damage: str) -> None:
    data = bytearray((checkpoint / name).read_bytes())
    data[-2] ^= 1
    (checkpoint / name).write_bytes(data if damage == "flipped" else data[:-1])
    group = FaultyGroup(2, checkpoint)
    before = group.state()
    for outcome in group.run(group.made(2, "load")):
        error = outcome.reply.result.error
        assert (error.code, error.retryable) == ("checkpoint_damaged", False)
        assert str(checkpoint / name) in error.message, "the path that the user knows"
        assert error.facts["path"] == str(checkpoint / name)
    assert group.state() == before
    assert group.codes(group.made(3, "step")) == [""] * 2, "the window is whole"
    group.pool.shutdown()


@pytest.mark.parametrize("lacks", ["model", "optimizer"])
def test_a_load_that_lacks_a_tensor_changes_nothing(checkpoint: Path, lacks: str) -> None:
    group = FaultyGroup(2, checkpoint)
    save_file({"v": torch.zeros(4)}, checkpoint / f"{lacks}.safetensors")
    checkpoints.seal(checkpoint, {})
    before = group.state()
    assert group.codes(group.made(2, "load")) == ["unknown_model"] * 2
    assert group.state() == before
    assert group.codes(group.made(3, "step")) == [""] * 2, "the window is whole"
    group.pool.shutdown()
