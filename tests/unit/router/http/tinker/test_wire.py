"""Batches of the Tinker SDK as the service's, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from plexclient.wire.v1 import tinker_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.http.tinker import losses, wire
from plexsvc.worker import losses as worker_losses


def tensor(values: list[float], *, dtype: int = pb.DTYPE_FLOAT32) -> pb.Tensor:
    kind = np.float32 if dtype == pb.DTYPE_FLOAT32 else np.int64
    data = np.array(values, kind).tobytes()
    return pb.Tensor(dense=data, dtype=dtype, shape=[len(values)])  # type: ignore[arg-type]


def request(loss: str = "cross_entropy", **inputs: list[float]) -> pb.ForwardBackwardRequest:
    """Return a request of two datums of two tokens and one; the second has the last inputs."""
    made = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn=loss)
    for tokens, part in (([7, 8], slice(0, 2)), ([9], slice(2, 3))):
        datum = made.data.add()
        for one in tokens:  # a chunk each
            datum.model_input.add().encoded_text.tokens = np.array([one], np.int32).tobytes()
        targets = tensor([one + 1 for one in tokens], dtype=pb.DTYPE_INT64)
        datum.loss_fn_inputs["target_tokens"].CopyFrom(targets)
        for name, values in inputs.items():
            datum.loss_fn_inputs[name].CopyFrom(tensor(values[part]))
    return made


def test_datums_become_one_packed_batch() -> None:
    found = wire.pass_of(request("ppo", logprobs=[-1, -2, -3], advantages=[1, 0, -1]))
    arrays = {name: array.tolist() for name, array in found.arrays.items()}
    assert arrays == {
        "cu_seqlens": [0, 2, 3],
        "tokens": [7, 8, 9],
        "target_tokens": [8, 9, 10],
        "logprobs": [-1, -2, -3],
        "advantages": [1, 0, -1],
        "mask": [1, 1, 1],
    }
    assert found.arguments == pytest.approx({"clip": 0.2, "clip_high": 0.2})


@pytest.mark.parametrize("tokens", [[1.5], ["7"], [True], [None], [2**31], [2**63]])
def test_a_number_of_json_that_is_no_token_is_refused_and_never_rounded(tokens: list[Any]) -> None:
    datum = {"model_input": {"chunks": [{"tokens": tokens}]}, "loss_fn_inputs": {}}
    given = {"data": [datum], "loss_fn": "cross_entropy"}
    with pytest.raises(PlexError, match="bad_request"):
        wire.request_of_json({"model_id": "m", "forward_input": given}, is_forward=True)


def test_a_request_as_json_is_the_same() -> None:
    def column(values: list[float], dtype: str = "float32") -> dict[str, Any]:
        return {"data": values, "dtype": dtype, "shape": [len(values)]}

    def datum(tokens: list[int], weights: list[float]) -> dict[str, Any]:
        targets = column([one + 1 for one in tokens], "int64")
        chunks = [{"type": "encoded_text", "tokens": tokens}]
        inputs = {"target_tokens": targets, "weights": column(weights)}
        return {"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs}

    data = [datum([7, 8], [1, 0.5]), datum([9], [2])]
    given = {"data": data, "loss_fn": "cross_entropy"}
    asked = {"model_id": "m", "seq_id": 1, "forward_backward_input": given}
    found = wire.pass_of(wire.request_of_json(asked, is_forward=False))
    expected = wire.pass_of(request(weights=[1, 0.5, 2]))
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, expected.arrays[name])


def test_tokens_without_weights_count_in_full() -> None:
    asked = request(weights=[1, 0.5, 2])
    del asked.data[0].loss_fn_inputs["weights"]
    assert wire.pass_of(asked).arrays["weights"].tolist() == [1, 1, 2]


def test_gspo_answers_the_loss_of_the_ranks_and_counts_no_prompt() -> None:
    given = request("gspo", logprobs=[-9, -2, -3], advantages=[0, 2, -1])
    given.loss_fn_config["clip_high_threshold"] = 1.5
    asked = wire.pass_of(given)
    assert asked.arrays["mask"].tolist() == [0, 1, 1]
    logprobs = np.array([-1, -1.7, -3.5], np.float32)
    each = losses.find("gspo").each(logprobs, asked.arrays, asked.arguments)
    tensors = {name: torch.tensor(array) for name, array in asked.arrays.items()}
    terms = worker_losses.resolve("gspo", asked.arguments, role="actor")(
        torch.tensor(logprobs), tensors
    )
    assert each[0] == 0
    assert float(each.sum()) == pytest.approx(float(terms.loss), rel=1e-6)


def _image(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[1].model_input.add().image.SetInParent()


def _wide(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[0].loss_fn_inputs["target_tokens"].shape[:] = [1, 2]


def _sparse(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[0].loss_fn_inputs["weights"].sparse_csr.SetInParent()


def _short(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[1].loss_fn_inputs["weights"].CopyFrom(tensor([1, 1]))


def _broken(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[0].loss_fn_inputs["weights"].dense = b"abc"


def _ragged(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[1].model_input[0].encoded_text.tokens = b"abcde"


def _negative(asked: pb.ForwardBackwardRequest) -> None:
    targets = tensor([-1], dtype=pb.DTYPE_INT64)
    asked.data[1].loss_fn_inputs["target_tokens"].CopyFrom(targets)


def _masked(asked: pb.ForwardBackwardRequest) -> None:
    asked.data[1].loss_fn_inputs["mask"].CopyFrom(tensor([1]))


def _empty(asked: pb.ForwardBackwardRequest) -> None:
    asked.ClearField("data")


def _named(asked: pb.ForwardBackwardRequest) -> None:
    asked.loss_fn = "stable_reinforce"


def _configured(asked: pb.ForwardBackwardRequest) -> None:
    asked.loss_fn_config_v2["clip"].text = "high"


@pytest.mark.parametrize(
    ("spoil", "text", "code"),
    [
        (_image, "image", ErrorCode.BAD_REQUEST),
        (_wide, "several targets", ErrorCode.BAD_BATCH),
        (_sparse, "several targets", ErrorCode.BAD_BATCH),
        (_short, r"data\[1\].*2 numbers for 1 tokens", ErrorCode.BAD_BATCH),
        (_ragged, "5 bytes are no tokens", ErrorCode.BAD_BATCH),
        (_broken, "no array", ErrorCode.BAD_BATCH),
        (_negative, "whole numbers from 0", ErrorCode.BAD_BATCH),
        (_masked, r"data\[1\].*mask: cross_entropy takes target_tok", ErrorCode.BAD_BATCH),
        (_empty, "data is empty", ErrorCode.BAD_BATCH),
        (_named, "stable_reinforce", ErrorCode.UNKNOWN_LOSS),
        (_configured, "loss_fn_config.clip", ErrorCode.BAD_REQUEST),
    ],
)
def test_what_a_batch_cannot_be_is_refused_by_name(
    spoil: Callable[[pb.ForwardBackwardRequest], None], text: str, code: ErrorCode
) -> None:
    asked = request(weights=[1, 1, 1])
    spoil(asked)
    with pytest.raises(PlexError, match=text) as refused:
        wire.pass_of(asked)
    assert refused.value.code == code


def test_an_answer_has_each_datums_numbers_and_metrics_that_say_how_they_add_up() -> None:
    asked = wire.pass_of(request(weights=[1, 0, 2]))
    logprobs = np.array([-1, -2, -3], np.float32)
    output = wire.output_of(asked, logprobs, {"loss": 7.0, "tokens": 2.0, "other": 1.0})
    told = wire.output_as_json(output)
    assert told["metrics"] == {"loss:sum": 7, "tokens:sum": 2}
    assert [one["logprobs"]["data"] for one in told["loss_fn_outputs"]] == [[-1, -2], [-3]]
    assert [one["elementwise_loss"]["data"] for one in told["loss_fn_outputs"]] == [[1, 0], [6]]
