"""Programs that a user of the Tinker SDK writes, each run by an interpreter that has the SDK.

`python tinker_programs.py NAME JSON` runs one and prints what it returns as JSON; the service's
address and the key are in `TINKER_BASE_URL` and `TINKER_API_KEY`, as the SDK has them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tinker
from tinker import types

CORPUS = ([3, 4, 5, 6, 7], [9, 8, 7, 6], [12, 13, 14])


def datum(tokens: list[int], **inputs: Any) -> Any:
    """Return a datum whose targets are its tokens, one on."""
    given = types.ModelInput.from_ints(tokens[:-1])
    return types.Datum(model_input=given, loss_fn_inputs={"target_tokens": tokens[1:], **inputs})


def corpus() -> list[Any]:
    """Return datums to learn by heart."""
    return [datum(tokens, weights=[1.0] * (len(tokens) - 1)) for tokens in CORPUS]


def logprobs(output: Any) -> list[list[float]]:
    """Return the logprobs of each datum."""
    return [one["logprobs"].tolist() for one in output.loss_fn_outputs]


def refusal(call: Any) -> dict[str, Any]:
    """Return what a call was refused with."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "", "text": "it was not refused"}


def supervised(model: str, steps: int = 4) -> dict[str, Any]:
    """Train by cross entropy; submit each step before the passes before it are waited for."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=0, seed=7).result()
    losses, norms = [], []
    for _ in range(steps):
        passed = client.forward_backward(corpus(), "cross_entropy")
        stepped = client.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(passed.result().metrics["loss:sum"])
        norms.append(stepped.result().metrics["grad_norm:mean"])
    after = client.forward(corpus(), "cross_entropy").result()
    service.close("success").result()
    return {
        "losses": losses,
        "norms": norms,
        "logprobs": logprobs(after),
        "elementwise": [one["elementwise_loss"].tolist() for one in after.loss_fn_outputs],
        "loss": after.metrics["loss:sum"],
    }


def refused(model: str) -> dict[str, Any]:
    """Ask for what is not offered, and go on training between."""
    service = tinker.ServiceClient()
    create = service.create_lora_training_client
    client = create(base_model=model, rank=0).result()
    data = corpus()
    found = {
        "adapter": refusal(lambda: create(base_model=model, rank=8).result()),
        "no model": refusal(lambda: create(base_model="nowhere", rank=0).result()),
        "loss": refusal(lambda: client.forward_backward(data, "gspo").result()),
        "config": refusal(
            lambda: client.forward_backward(data, "cross_entropy", {"clip": 1.0}).result()
        ),
        "length": refusal(
            lambda: client.forward_backward(
                [datum([3, 4, 5], weights=[1.0])], "cross_entropy"
            ).result()
        ),
        "missing": refusal(lambda: client.forward_backward(data, "ppo").result()),
        "number": refusal(lambda: client.optim_step(types.AdamParams(learning_rate=-1.0)).result()),
        "not finite": refusal(
            lambda: client.forward_backward(
                [datum([3, 4, 5], weights=[1.0, float("nan")])], "cross_entropy"
            ).result()
        ),
    }
    passed = client.forward_backward(data, "cross_entropy").result()
    stepped = client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    return {"refusals": found, "loss": passed.metrics["loss:sum"], "step": stepped.metrics}


PROGRAMS = {one.__name__: one for one in (supervised, refused)}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(PROGRAMS[sys.argv[1]](**json.loads(sys.argv[2]))) + "\n")
