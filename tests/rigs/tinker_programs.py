"""Programs that a user of the Tinker SDK writes, each run by an interpreter that has the SDK.

`python tinker_programs.py NAME JSON` runs one and prints what it returns as JSON; the service's
address and the key are in `TINKER_BASE_URL` and `TINKER_API_KEY`, as the SDK has them.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
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
        "adapter": refusal(lambda: create(base_model=model, rank=4096).result()),
        "no layers": refusal(
            lambda: create(base_model=model, rank=8, train_attn=False, train_mlp=False).result()
        ),
        "no model": refusal(lambda: create(base_model="nowhere", rank=0).result()),
        "loss": refusal(lambda: client.forward_backward(data, "stable_reinforce").result()),
        "config": refusal(
            lambda: client.forward_backward(data, "cross_entropy", {"clip": 1.0}).result()
        ),
        "length": refusal(
            lambda: client.forward_backward(
                [datum([3, 4, 5], weights=[1.0])], "cross_entropy"
            ).result()
        ),
        "not taken": refusal(lambda: client.forward_backward(data, "ppo").result()),
        "missing": refusal(lambda: client.forward_backward([datum([3, 4, 5])], "ppo").result()),
        "number": refusal(lambda: client.optim_step(types.AdamParams(learning_rate=-1.0)).result()),
        "not finite": refusal(
            lambda: client.forward_backward(
                [datum([3, 4, 5], weights=[1.0, float("nan")])], "cross_entropy"
            ).result()
        ),
    }
    passed = client.forward_backward(data, "cross_entropy").result()
    stepped = client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    service.close("success").result()
    return {"refusals": found, "loss": passed.metrics["loss:sum"], "step": stepped.metrics}


def sampled(model: str) -> dict[str, Any]:
    """Train, sample what was learned by several samplers, and score with each."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=0, seed=7).result()
    learn(client, steps=8)
    tokens, prompt = list(CORPUS[0]), types.ModelInput.from_ints(CORPUS[0][:2])
    greedy = types.SamplingParams(max_tokens=3, temperature=0.0)
    early = client.save_weights_and_get_sampling_client()
    drawn = early.sample(prompt, num_samples=2, sampling_params=greedy).result()
    named = client.save_weights_for_sampler("eight").result()
    scored = client.forward([datum(tokens, weights=[1.0] * 4)], "cross_entropy").result()
    learn(client, steps=4)
    late = client.save_weights_and_get_sampling_client()
    again = service.create_sampling_client(model_path=named.path)
    base = service.create_sampling_client(base_model=model)
    whole = types.ModelInput.from_ints(tokens)
    clients = {"early": early, "late": late, "named": again, "base": base, "early again": early}
    scores = {name: one.compute_logprobs(whole).result() for name, one in clients.items()}
    params = types.SamplingParams(max_tokens=6, seed=5, stop=[CORPUS[0][3]])
    seeded = [
        late.sample(
            prompt,
            num_samples=1,
            sampling_params=params,
            include_prompt_logprobs=True,
            topk_prompt_logprobs=2,
            topk_sample_logprobs=3,
        ).result()
        for _ in range(2)
    ]
    many = [late.sample(prompt, 1, types.SamplingParams(max_tokens=4)) for _ in range(40)]
    found = {
        "drawn": [list(one.tokens) for one in drawn.sequences],
        "reasons": [one.stop_reason for one in drawn.sequences],
        "logprobs": list(drawn.sequences[0].logprobs),
        "ids": [one.sequence_id for one in drawn.sequences],
        "trained": logprobs(scored)[0],
        "scores": scores,
        "seeded": [list(one.sequences[0].tokens) for one in seeded],
        "stopped": seeded[0].sequences[0].stop_reason,
        "top of prompt": seeded[0].topk_prompt_logprobs,
        "top": [len(one) for one in seeded[0].sequences[0].topk_logprobs],
        "many": len([one.result() for one in many]),
        "base model": again.get_base_model(),
        "unoffered": refusal(
            lambda: late.sample(prompt, 1, greedy, prompt_alt_tokens_k=2).result()
        ),
    }
    service.close("success").result()
    return found


def learn(client: Any, *, steps: int) -> None:
    """Take steps by cross entropy."""
    for _ in range(steps):
        passed = client.forward_backward(corpus(), "cross_entropy")
        stepped = client.optim_step(types.AdamParams(learning_rate=1e-2))
        passed.result()
        stepped.result()


def reinforced(model: str) -> dict[str, Any]:
    """Pass by every policy loss, forward alone and backward too, with `await`."""

    async def run() -> dict[str, Any]:
        service = tinker.ServiceClient()
        client = await service.create_lora_training_client(base_model=model, rank=0)
        before = await client.forward(corpus(), "cross_entropy")
        data = [
            datum(tokens, logprobs=[one - 0.3 for one in old], advantages=[1.0, -1.0] + [0.5] * 2)
            if len(old) == 4
            else datum(tokens, logprobs=old, advantages=[1.0] * len(old))
            for tokens, old in zip(CORPUS, logprobs(before), strict=True)
        ]
        found = {}
        for loss in ("importance_sampling", "ppo", "cispo", "dro", "gspo"):
            ahead, back = client.forward(data, loss), client.forward_backward(data, loss)
            found[loss] = [(await ahead).metrics, (await back).metrics]
        config = {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}
        clipped = await client.forward_backward(data, "ppo", config)
        await service.close("success")
        return {"losses": found, "clipped": clipped.metrics}

    return asyncio.run(run())


def saved(model: str) -> dict[str, Any]:
    """Save a state, go on from it in a new client, and look at what is there."""
    service, rest = tinker.ServiceClient(), tinker.RestClient()
    client = service.create_lora_training_client(base_model=model, rank=0).result()
    learn(client, steps=2)
    state = client.save_state("two", user_metadata={"epoch": "1"}).result()
    learn(client, steps=2)
    straight = client.forward(corpus(), "cross_entropy").result().metrics["loss:sum"]
    create = service.create_training_client_from_state_with_optimizer
    resumed = create(state.path).result()
    learn(resumed, steps=2)
    short = client.save_state("short", ttl_seconds=1).result()
    listed = rest.list_checkpoints(client.model_id).result().checkpoints[-1]
    until = time.monotonic() + 30
    while short.path in names(rest) and time.monotonic() < until:
        continue
    found = {
        "straight": straight,
        "resumed": resumed.forward(corpus(), "cross_entropy").result().metrics["loss:sum"],
        "twice": refusal(lambda: client.save_state("two").result()),
        "over": refusal(lambda: create(short.path).result()),
        "renamed": create(state.path, base_model="whole").result().get_info().model_name,
        "renamed wrongly": refusal(lambda: create(state.path, base_model="nowhere").result()),
        "nowhere": refusal(lambda: create("tinker://x:train:0/weights/y").result()),
        "metadata": listed.user_metadata,
        "runs": [one.training_run_id for one in rest.list_training_runs().result().training_runs],
        "model": client.model_id,
        "names": names(rest),
        "base": rest.get_weights_info_by_tinker_path(state.path).result().base_model,
        "publish": refusal(lambda: rest.publish_checkpoint_from_tinker_path(state.path).result()),
        "path": state.path,
    }
    rest.set_checkpoint_ttl_from_tinker_path(state.path, 1000).result()
    service.close("success").result()
    return found


def adapted(model: str) -> dict[str, Any]:
    """Train adapters, sample from each kind of sampler, and go on from what was saved."""
    service, rest = tinker.ServiceClient(), tinker.RestClient()
    client = service.create_lora_training_client(base_model=model, rank=8, seed=3).result()
    losses = [client.forward(corpus(), "cross_entropy").result().metrics["loss:sum"]]
    learn(client, steps=6)
    losses.append(client.forward(corpus(), "cross_entropy").result().metrics["loss:sum"])
    state = client.save_state("six").result()
    named = client.save_weights_for_sampler("six").result()
    tokens = list(CORPUS[0])
    one = [datum(tokens, weights=[1.0] * (len(tokens) - 1))]
    samplers = {
        "base": service.create_sampling_client(base_model=model),
        "own": client.save_weights_and_get_sampling_client(),
        "named": service.create_sampling_client(model_path=named.path),
    }
    prompt = types.ModelInput.from_ints(tokens)
    scores = {name: each.compute_logprobs(prompt).result() for name, each in samplers.items()}
    trained = logprobs(client.forward(one, "cross_entropy").result())[0]
    resumed = service.create_training_client_from_state_with_optimizer(state.path).result()
    ends = []
    for each in (client, resumed):
        learn(each, steps=2)
        ends.append(each.forward(corpus(), "cross_entropy").result().metrics["loss:sum"])
    info, saved_as = client.get_info(), rest.get_weights_info_by_tinker_path(state.path).result()
    service.close("success").result()
    return {
        "losses": losses,
        "scores": scores,
        "trained": trained,
        "ends": ends,
        "ranks": [info.lora_rank, saved_as.lora_rank],
        "is_lora": [info.is_lora, saved_as.is_lora],
    }


def names(rest: Any) -> list[str]:
    """Return what is saved."""
    return [one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints]


def stolen(model: str, path: str) -> dict[str, Any]:
    """Ask for another tenant's weights, and remove what one has not."""
    service, rest = tinker.ServiceClient(), tinker.RestClient()
    create = service.create_training_client_from_state
    return {
        "load": refusal(lambda: create(path, base_model=model).result()),
        "sample": refusal(lambda: service.create_sampling_client(model_path=path).result()),
        "delete": refusal(lambda: rest.delete_checkpoint_from_tinker_path(path).result()),
        "names": len(rest.list_user_checkpoints().result().checkpoints),
    }


def watched(model: str, steps: int, progress: str) -> dict[str, Any]:
    """Train, and tell a file how far; keep a few requests under way; sample in the end."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=0, seed=7).result()
    losses, waiting = [], []
    for step in range(steps):
        waiting.append(client.forward_backward(corpus(), "cross_entropy"))
        stepped = client.optim_step(types.AdamParams(learning_rate=1e-2))
        if step % 2:
            stepped.result()
        Path(progress).write_text(str(step))
    losses = [one.result().metrics["loss:sum"] for one in waiting]
    sampler = client.save_weights_and_get_sampling_client()
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(CORPUS[0])).result()
    service.close("success").result()
    return {"losses": losses, "scores": scores}


def paced(model: str, steps: int, rows: int, wait_s: float, begin: str) -> dict[str, Any]:
    """Take steps, each after a wait, once the file `begin` is there; return the losses."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=0, seed=7).result()
    data = [datum([3, 4, 5, 6] * 32, weights=[1.0] * 127)] * rows
    client.forward(data, "cross_entropy").result()
    Path(begin + f".{client.model_id}").touch()
    while not Path(begin).exists():
        time.sleep(0.01)  # noqa: TID251 - as a user
    begun_s, losses = time.monotonic(), []
    for _ in range(steps):
        time.sleep(wait_s)  # noqa: TID251 - as a user whose tools run
        passed = client.forward_backward(data, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        losses.append(passed.result().metrics["loss:sum"])
    ended_s = time.monotonic()
    service.close("success").result()
    return {"losses": losses, "begun_s": begun_s, "ended_s": ended_s}


def settled(found: Any) -> Any:
    """Return a client: older SDKs return it, newer ones a future of it."""
    return found.result() if hasattr(found, "result") else found


def everything(model: str) -> dict[str, Any]:
    """Do what every version of the SDK can; return what went wrong, by name."""
    service = tinker.ServiceClient()
    sampling, whole = types.SamplingParams(max_tokens=4), types.ModelInput.from_ints(CORPUS[0])
    client = settled(service.create_lora_training_client(base_model=model, rank=0))
    old = client.forward(corpus(), "cross_entropy").result()
    data = [
        datum(tokens, logprobs=list(one["logprobs"].data), advantages=[1.0] * (len(tokens) - 1))
        for tokens, one in zip(CORPUS, old.loss_fn_outputs, strict=True)
    ]
    learn(client, steps=2)
    state = client.save_state("state").result().path
    weights = client.save_weights_for_sampler("weights").result().path
    sampler = settled(client.save_weights_and_get_sampling_client(name="now"))
    rest = service.create_rest_client()

    async def asynchronous() -> Any:
        made = await service.create_lora_training_client_async(base_model=model, rank=0)
        passed = await made.forward_backward_async(corpus(), "cross_entropy")
        stepped = await made.optim_step_async(types.AdamParams(learning_rate=1e-3))
        return await passed.result_async(), await stepped.result_async()

    def scored(**given: Any) -> Any:
        return settled(service.create_sampling_client(**given)).compute_logprobs(whole).result()

    checks = {
        "capabilities": service.get_server_capabilities,
        "info": client.get_info,
        "large": lambda: (
            client.forward_backward([datum([3] * 400, weights=[1.0] * 399)] * 60, "cross_entropy")
            .result()
            .loss_fn_outputs[59]["logprobs"]
            .data[398]
        ),
        **{
            loss: partial(lambda loss: client.forward_backward(data, loss).result(), loss)
            for loss in ("importance_sampling", "ppo", "cispo", "dro")
        },
        "load": lambda: client.load_state(state).result(),
        "load all": lambda: client.load_state_with_optimizer(state).result(),
        "from state": lambda: settled(service.create_training_client_from_state(state)),
        "sample": lambda: sampler.sample(whole, 2, sampling).result().sequences[1].tokens[0],
        "prompt": lambda: sampler.sample(whole, 1, sampling, True, 2).result().prompt_logprobs[1],
        "score": lambda: sampler.compute_logprobs(whole).result(),
        "named": lambda: scored(model_path=weights),
        "base": lambda: scored(base_model=model),
        "asynchronous": lambda: asyncio.run(asynchronous()),
        "runs": lambda: rest.list_training_runs().result().training_runs[0],
        "run": lambda: rest.get_training_run(client.model_id).result(),
        "checkpoints": lambda: rest.list_checkpoints(client.model_id).result().checkpoints[1],
        "all checkpoints": lambda: rest.list_user_checkpoints().result().checkpoints[1],
        "sessions": lambda: rest.get_session(rest.list_sessions().result().sessions[0]).result(),
        "weights": lambda: rest.get_weights_info_by_tinker_path(state).result(),
        "archive": lambda: archived(rest, state),
        "external": lambda: exported(rest, client),
        "delete": lambda: rest.delete_checkpoint_from_tinker_path(state).result(),
    }
    wrong = failing(checks)
    if hasattr(service, "close"):
        service.close("success").result()
    return {"version": tinker.__version__, "wrong": wrong}


def failing(checks: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """Return what the checks that fail raise, by their names."""
    wrong = {}
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            wrong[name] = repr(error)
    return wrong


def archived(rest: Any, path: str) -> None:
    """Follow the link to an archive, where the SDK knows such."""
    if not hasattr(rest, "get_checkpoint_archive_url_from_tinker_path"):
        return
    link = rest.get_checkpoint_archive_url_from_tinker_path(path).result()
    with (
        urllib.request.urlopen(link.url) as body,
        tarfile.open(fileobj=io.BytesIO(body.read())) as tar,
    ):
        assert "model.safetensors" in tar.getnames(), tar.getnames()


def exported(rest: Any, client: Any) -> None:
    """Follow the links to the files of an export, where the SDK knows such."""
    if not hasattr(rest, "get_external_weights_urls"):
        return
    path = client.save_weights_external("files", ttl_seconds=3600).result().path
    links = rest.get_external_weights_urls(path).result()
    with urllib.request.urlopen(links.urls["config.json"]) as body:
        assert json.load(body)["model_type"] == "qwen3"


PROGRAMS = {
    one.__name__: one
    for one in (
        adapted,
        everything,
        paced,
        refused,
        reinforced,
        sampled,
        saved,
        stolen,
        supervised,
        watched,
    )
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(PROGRAMS[sys.argv[1]](**json.loads(sys.argv[2]))) + "\n")
