"""Checks of operations: each refusal has its code, names what is wrong and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from plexclient.ids import new_operation_id
from plexclient.losses import BUILT_IN_LOSSES
from plexclient.wire import tensors
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.config import RouterConfig
from plexsvc.router.validation import (
    ROLES_OF_KIND,
    OperationRules,
    check_identity,
    digest_of,
)
from tests.rigs.router_rig import MAX_LENGTH, VOCAB, actor, batch

Arrays = dict[str, npt.NDArray[np.generic]]

PPO = ops.ForwardBackward(loss="ppo")
RULES = OperationRules(RouterConfig(max_batch_tokens=4096, max_batch_sequences=16, max_prompts=2))


def operation(arrays: Arrays | None = None, **body: Any) -> ops.Operation:
    made = ops.Operation(
        operation_id=new_operation_id(), job_id="job-1", deployment_id="job-1/actor", seq=1, **body
    )
    if arrays is not None:
        made.payload.inline.CopyFrom(tensors.encode(arrays))
    return made


def announced(arrays: Arrays, **body: Any) -> ops.Operation:
    made = operation(**body)
    specs, nbytes = tensors.layout(arrays)
    made.payload.staged.tensors.extend(specs)
    made.payload.staged.nbytes = nbytes
    return made


def deployment(role: str, **changes: object) -> pb.Deployment:
    made = actor(**changes)
    made.spec.role = role
    if role not in {"actor", "critic"}:
        made.spec.ClearField("optimizer")
    return made


def refusal(made: ops.Operation, *, on: pb.Deployment | None = None) -> PlexError:
    with pytest.raises(PlexError) as caught:
        RULES.admit(made, on or actor())
    return caught.value


def changed(name: str, *, at: int, to: float) -> Arrays:
    arrays = batch([5, 9, 3])
    arrays[name][at] = to
    return arrays


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        (changed("advantages", at=3, to=np.nan), ["advantages", "3"]),
        (changed("logprobs", at=0, to=-np.inf), ["logprobs"]),
        (changed("tokens", at=2, to=VOCAB), ["tokens", str(VOCAB)]),
        (changed("target_tokens", at=2, to=-1), ["target_tokens", "-1"]),
        (changed("cu_seqlens", at=1, to=14), ["cu_seqlens"] and ["sequence"]),
        (batch([5, 9]) | {"mask": np.ones(13, np.float32)}, ["mask", "13", "14"]),
        (batch([MAX_LENGTH + 1]), [str(MAX_LENGTH)]),
        ({k: v for k, v in batch([4]).items() if k != "mask"}, ["mask"]),
        (batch([4]) | {"tokens": np.ones((2, 2), np.int32)}, ["tokens", "[2, 2]"]),
        (batch([4]) | {"tokens": np.ones(4, np.float32)}, ["tokens", "F32"]),
    ],
)
def test_a_bad_batch_is_refused_by_the_name_of_what_is_wrong(
    arrays: Arrays, named: list[str]
) -> None:
    error = refusal(operation(arrays, forward_backward=PPO))
    assert error.code == ErrorCode.BAD_BATCH
    assert all(name in error.message for name in named), error.message


def test_a_missing_batch_says_which_arrays_are_needed() -> None:
    error = refusal(operation(forward_backward=PPO))
    assert error.code == ErrorCode.BAD_BATCH
    assert "tokens, cu_seqlens, target_tokens, logprobs, advantages, mask" in error.message


@pytest.mark.parametrize(
    ("lengths", "key"),
    [([2048, 2049], "router.max_batch_tokens"), ([2] * 17, "router.max_batch_sequences")],
)
def test_an_oversize_batch_names_the_configuration_key(lengths: list[int], key: str) -> None:
    error = refusal(announced(batch(lengths), forward_backward=PPO))
    assert error.code == ErrorCode.PAYLOAD_TOO_LARGE
    assert key in error.message
    assert error.facts["key"] == key


def test_an_inline_payload_beyond_its_limit_is_to_be_staged() -> None:
    error = refusal(operation(batch([4096]), forward_backward=PPO))
    assert error.code == ErrorCode.PAYLOAD_TOO_LARGE
    assert "wire.inline_payload_bytes" in error.message


def test_an_announced_batch_is_checked_for_its_arrays_and_keyed_by_its_operation() -> None:
    good = announced(batch([100]), forward_backward=PPO)
    RULES.admit(good, actor())
    assert good.payload.staged.staging_id == good.operation_id
    assert not good.HasField("plan")
    arrays = batch([100])
    del arrays["logprobs"]
    error = refusal(announced(arrays, forward_backward=PPO))
    assert error.code == ErrorCode.BAD_BATCH
    assert "logprobs" in error.message


def test_specs_that_overlap_their_bundle_are_refused() -> None:
    made = announced(batch([100]), forward_backward=PPO)
    made.payload.staged.nbytes = 64
    assert refusal(made).code == ErrorCode.BAD_BATCH


def test_an_unknown_loss_lists_the_known() -> None:
    error = refusal(operation(batch([4]), forward_backward=ops.ForwardBackward(loss="pp0")))
    assert error.code == ErrorCode.UNKNOWN_LOSS
    assert all(name in error.message for name in BUILT_IN_LOSSES)


@pytest.mark.parametrize(("role", "loss"), [("actor", "value_mse"), ("critic", "ppo")])
def test_a_loss_must_fit_the_role(role: str, loss: str) -> None:
    body = ops.ForwardBackward(loss=loss)
    error = refusal(operation(batch([4]), forward_backward=body), on=deployment(role))
    assert error.code == ErrorCode.BAD_REQUEST
    assert loss in error.message


@pytest.mark.parametrize(
    ("argument", "value", "word"),
    [("clip", float("nan"), "clip of"), ("clip", -1.0, "not negative"), ("beta", 1.0, "beta")],
)
def test_a_loss_argument_must_be_known_finite_and_not_negative(
    argument: str, value: float, word: str
) -> None:
    body = ops.ForwardBackward(loss="ppo", loss_args={argument: value})
    error = refusal(operation(batch([4]), forward_backward=body))
    assert error.code == ErrorCode.BAD_REQUEST
    assert word in error.message


@pytest.mark.parametrize(
    ("role", "body", "word"),
    [
        ("rollout", {"step": ops.Step()}, "rollout"),
        ("reference", {"zero_grad": ops.ZeroGrad()}, "reference"),
        ("actor", {"generate": ops.Generate()}, "actor"),
        ("actor", {"initialize": ops.Initialize()}, "service's own"),
        ("actor", {}, "says not what to do"),
        ("actor", {"step": ops.Step(lr=float("inf"))}, "lr"),
        ("actor", {"step": ops.Step(beta2=1.0)}, "beta2"),
        ("actor", {"step": ops.Step(eps=0.0)}, "eps"),
        ("actor", {"step": ops.Step(eps=1e-300)}, "eps"),
        ("actor", {"step": ops.Step(lr=1e300)}, "lr"),
        ("actor", {"forward": ops.Forward(temperature=-1)}, "temperature"),
        ("rollout", {"pull": ops.Pull(version=0)}, "version"),
        (
            "reference",
            {"pull": ops.Pull(source_deployment_id="a", version=1, finishes_turns=True)},
            "only a rollout deployment has turns",
        ),
        ("rollout", {"generate": ops.Generate()}, "no prompts"),
    ],
)
def test_an_operation_that_makes_no_sense_says_why(
    role: str, body: dict[str, Any], word: str
) -> None:
    error = refusal(operation(**body), on=deployment(role))
    assert error.code == ErrorCode.BAD_REQUEST
    assert word in error.message


def test_more_prompts_than_one_generate_takes_are_refused_with_the_key() -> None:
    body = ops.Generate(prompts=[ops.Prompt(token_ids=[1])] * 3)
    error = refusal(operation(generate=body), on=deployment("rollout"))
    assert error.code == ErrorCode.PAYLOAD_TOO_LARGE
    assert "router.max_prompts" in error.message


def test_a_step_without_an_optimizer_is_refused() -> None:
    frozen = actor()
    frozen.spec.ClearField("optimizer")
    assert "optimizer" in refusal(operation(step=ops.Step()), on=frozen).message


def test_a_payload_where_none_belongs_is_refused() -> None:
    assert "no payload" in refusal(operation(batch([4]), step=ops.Step())).message


def test_a_client_cannot_bring_its_own_plan() -> None:
    made = operation(batch([5, 9]), forward_backward=PPO)
    made.plan.ranks.add().micro_batches.add(sequences=[7])
    RULES.admit(made, actor())
    assert sorted(
        i for rank in made.plan.ranks for mb in rank.micro_batches for i in mb.sequences
    ) == [0, 1]


def test_a_critic_needs_no_targets_to_go_forward() -> None:
    arrays = {name: batch([4])[name] for name in ("tokens", "cu_seqlens")}
    RULES.admit(operation(arrays, forward=ops.Forward()), deployment("critic"))
    assert refusal(operation(arrays, forward=ops.Forward())).code == ErrorCode.BAD_BATCH


def test_every_kind_of_operation_has_its_roles() -> None:
    kinds = {field.name for field in ops.Operation.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert kinds - set(ROLES_OF_KIND) == {"initialize"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"operation_id": b"short"}, "16 bytes"),
        ({"job_id": ""}, "job_id"),
        ({"seq": 0}, "count from 1"),
        ({"after": [b"x"]}, "16 bytes"),
    ],
)
def test_an_operation_that_cannot_be_placed_is_refused(change: dict[str, Any], word: str) -> None:
    made = operation(noop=ops.Noop())
    for name in change:
        made.ClearField(name)
    made.MergeFrom(ops.Operation(**change))
    with pytest.raises(PlexError) as caught:
        check_identity(made)
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert word in caught.value.message


def test_more_arrays_than_a_batch_has_are_refused_with_the_key() -> None:
    many = {f"extra{i}": np.zeros(4, np.float32) for i in range(70)}
    error = refusal(operation({**batch([4]), **many}, forward=ops.Forward(temperature=1.0)))
    assert error.code == ErrorCode.PAYLOAD_TOO_LARGE
    assert "router.max_batch_arrays" in error.message


def test_an_operation_that_waits_for_hundreds_is_refused_with_the_key() -> None:
    made = operation(noop=ops.Noop())
    made.after.extend(bytes([i, j]) * 8 for i in range(20) for j in range(20))
    assert "waits for" in refusal(made).message


def test_the_digest_of_an_operation_is_of_what_its_client_sent() -> None:
    first = operation(forward_backward=ops.ForwardBackward(loss="ppo", loss_args={"a": 1, "b": 2}))
    again = ops.Operation.FromString(first.SerializeToString())
    again.tenant, again.digest = "t", b"old"
    again.plan.version = 3
    again.refusal.code = "bad_request"
    assert digest_of(first) == digest_of(again)
    again.forward_backward.loss_args["b"] = 3
    assert digest_of(first) != digest_of(again)


@pytest.mark.parametrize(("seeds", "after"), [("", 1), ("job-1/rollout", 0), ("job-1/rollout", 2)])
def test_a_seed_serves_one_generate_of_the_deployment_that_its_own_names(
    seeds: str, after: int
) -> None:
    engines = deployment("rollout")
    engines.spec.seeds = seeds
    made = operation(seed=ops.Seed(), after=[new_operation_id() for _ in range(after)])
    assert "after the one generate" in refusal(made, on=engines).message
    engines.spec.seeds = "job-1/rollout"
    RULES.admit(operation(seed=ops.Seed(), after=[new_operation_id()]), engines)
