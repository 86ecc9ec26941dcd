"""Steps in host memory: those of the device but for rounding, whatever is parked in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.fake_state_client import assemble
from tests.rigs.model_families import BOTH, make_model
from tests.rigs.rank_host import Group, StartGroup
from tests.rigs.worker_batches import errors, operation, plan, random_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

ONE = plan([[0, 2], [1], [3]])
TWO = plan([[0, 2], [3]], [[1], []])
ADAMW = {"lr": 1e-2, "beta2": 0.95, "weight_decay": 0.1, "clip_grad_norm": 0.01}
GROUPS: dict[str, tuple[dict[str, Any], Any]] = {
    "fsdp-one-rank": ({"backend": "fsdp"}, ONE),
    "megatron-one-rank": ({"backend": "megatron"}, ONE),
    "megatron-bf16": ({"backend": "megatron", "dtype": "bfloat16"}, ONE),
    "fsdp-dp2-bf16": ({"backend": "fsdp", "dtype": "bfloat16", "parallel": {"dp": 2}}, TWO),
    "megatron-dp2": ({"backend": "megatron", "parallel": {"dp": 2}}, TWO),
    "megatron-dp2-shared-bf16": (
        {
            "backend": "megatron",
            "dtype": "bfloat16",
            "parallel": {"dp": 2, "distributed_optimizer": True},
        },
        TWO,
    ),
    "megatron-tp2": ({"backend": "megatron", "parallel": {"tp": 2}}, ONE),
    "megatron-tp2-dp2": (
        {"backend": "megatron", "parallel": {"tp": 2, "dp": 2, "sequence_parallel": True}},
        TWO,
    ),
    "megatron-pp2": ({"backend": "megatron", "parallel": {"pp": 2}}, ONE),
    "megatron-cp2": ({"backend": "megatron", "parallel": {"cp": 2}}, ONE),
    "megatron-ep2": ({"backend": "megatron", "parallel": {"dp": 2, "ep": 2}}, TWO),
    "megatron-tp2-ep2": (
        {"backend": "megatron", "parallel": {"tp": 2, "ep": 2, "sequence_parallel": True}},
        ONE,
    ),
    "megatron-dp4-ep2-shared": (
        {
            "backend": "megatron",
            "parallel": {"dp": 4, "ep": 2, "distributed_optimizer": True},
        },
        plan([[0]], [[2]], [[3]], [[1]]),
    ),
}
Start = Callable[..., Group]
KINDS = ("param", "master", "exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def experts_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("experts") / "model", BOTH["qwen3_moe"])


@pytest.fixture
def start(start_group: StartGroup, experts_model: Path) -> Start:
    """Return a function that starts the group of a name with its optimizer in a place."""

    def _start(name: str, *, on: str) -> Group:
        settings, _ = GROUPS[name]
        model = {"model": str(experts_model)} if "ep2" in name else {}
        return start_group(**settings, **model, optimizer={**ADAMW, "on": on})

    return _start


def train(
    group: Group, name: str, *, on: str, windows: int = 1, is_moved: bool = False
) -> list[bytes]:
    """Make steps, the last of which has no gradients; return the digests of all replies."""
    _, split = GROUPS[name]
    digests: list[bytes] = []
    kinds = (*("forward_backward", "forward_backward", "step") * windows, "step")
    for seq, kind in enumerate(kinds, start=1):
        if kind == "step":
            run = operation(seq, kind)
        else:
            run = operation(seq, kind, random_batch(seq), split=split, loss="ppo")
        if on == "host" and kind == "step":
            group.ask("park")
        replies = group.execute(run)
        assert errors(replies) == [""] * len(replies), [r.result.error.message for r in replies]
        digests += [reply.digest for reply in replies]
        if is_moved and kind != "step":
            group.ask("park")
        if (on == "host" and kind == "step") or (is_moved and kind != "step"):
            group.ask("unpark")
    return digests


def tensors(group: Group) -> dict[str, dict[str, np.ndarray]]:
    held = group.ask("held")
    return {kind: assemble(held, kind) for kind in KINDS}


@pytest.mark.parametrize("name", GROUPS)
def test_steps_equal_those_on_the_device_within_rounding(start: Start, name: str) -> None:
    found = {}
    for on in ("device", "host"):
        group = start(name, on=on)
        train(group, name, on=on)
        found[on] = tensors(group)
        assert group.ask("scalars") == [{"adam_step": 2}] * len(group.ask("scalars"))
    for kind in KINDS:
        assert found["host"][kind].keys() == found["device"][kind].keys()
        for tensor, values in found["device"][kind].items():
            # One window: later gradients would be those of weights that were rounded otherwise.
            # A step moves a weight by 1e-2, whose gradient may be little more than rounding.
            is_moment, largest = kind.startswith("exp"), float(np.abs(values).max())
            is_rounded = kind == "param" and "bf16" in name and "fsdp" not in name
            rtol = 2**-7 if is_rounded else 1e-5
            atol = 1e-6 * largest if is_moment else 1e-5
            assert np.allclose(found["host"][kind][tensor], values, rtol=rtol, atol=atol), tensor


@pytest.mark.parametrize("name", GROUPS)
def test_a_switch_between_backward_and_step_changes_no_bit(start: Start, name: str) -> None:
    ends = []
    for is_moved in (False, True):
        group = start(name, on="host")
        digests = train(group, name, on="host", windows=2, is_moved=is_moved)
        found = {k: {n: v.tobytes() for n, v in t.items()} for k, t in tensors(group).items()}
        ends.append((digests, found))
    assert ends[0] == ends[1]


def test_a_device_holds_neither_moments_nor_masters(start: Start) -> None:
    sizes = {on: start("fsdp-one-rank", on=on).ask("device_bytes")[0] for on in ("device", "host")}
    assert sizes["host"] == sizes["device"] // 2


def test_a_step_on_the_host_is_refused_while_the_state_is_on_the_device(
    start: Start,
) -> None:
    group = start("fsdp-one-rank", on="host")
    batch = operation(1, "forward_backward", random_batch(1), split=ONE, loss="ppo")
    assert errors(group.execute(batch)) == [""]
    before = group.ask("raw")
    (reply,) = group.execute(operation(2, "step"))
    assert reply.result.error.code == "bad_request"
    assert "parked" in reply.result.error.message
    assert group.ask("raw") == before
