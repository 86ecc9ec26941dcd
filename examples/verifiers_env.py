"""Environments of `verifiers` (0.4), unmodified: their episodes and rewards train an actor.

    python examples/verifiers_env.py DIR http://HOST:PORT/v1    # the model, router.http_listen

with PLEX_ADDRESS and PLEX_TOKEN set, in an environment with `verifiers` and `plexclient`. Its train
client calls the OpenAI endpoint of a rollout with token ids, and keeps what was sampled.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

import plexclient as plex

ENVIRONMENT, GROUP, STEPS = "verifiers_guess", 16, 12


class InProcess(vf.Harness[vf.HarnessConfig]):
    """Asks in this process; `null`, as verifiers has it, starts a `uv` script for each turn."""

    SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # noqa: ANN001, ANN201, D102
        _, prompt = self.resolve_prompt(data)
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        messages = [{"role": one.role, "content": one.content or ""} for one in said]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["InProcess"]


def turns_of(trace: vf.Trace) -> Iterator[plex.Sample]:
    """Yield what the model wrote in an episode, each with all that stood before it."""
    for branch in trace.branches:
        before: list[int] = []
        for node in branch.nodes:
            split = node.mask.index(True) if node.sampled else len(node.mask)
            before += node.token_ids[:split]
            if node.sampled:
                yield plex.Sample(
                    prompt_index=0,
                    sample_index=0,
                    prompt_tokens=list(before),
                    tokens=node.token_ids[split:],
                    logprobs=node.logprobs,
                    versions=[],
                    sources=[],
                    finish_reason="stop",
                )
                before += node.token_ids[split:]


async def train(job: plex.Job, model: str, base_url: str) -> None:
    """Run one job."""
    adamw = plex.AdamW(lr=1e-3)
    policy = plex.Declared("actor", model=model, backend="megatron", optimizer=adamw)
    engine = plex.Declared("rollout", model=policy, backend="vllm", max_model_len=96)
    actor, rollout = await job.deploy_all.aio(policy, engine)
    player = {"harness": {"id": "verifiers_env"}, "runtime": {"type": "subprocess"}}
    config = resolve_env_config({"taskset": {"id": ENVIRONMENT}, "player": player})
    env = load_environment(config)
    context = vf.ModelContext(
        model=rollout.deployment_id,
        client=vf.TrainClientConfig(
            base_url=base_url, api_key_var="PLEX_TOKEN", renderer_model_name=model
        ),
        sampling=vf.SamplingConfig(max_tokens=1, temperature=1.0),
    )
    async with env.serving():
        for step in range(STEPS):
            await rollout.sync.aio(actor)
            tasks = [task for task in env.taskset for _ in range(GROUP)]
            episodes = await asyncio.gather(*(env.run_episode(task, context) for task in tasks))
            if failed := next((one for one in episodes if not one.ok), None):
                raise SystemExit(str(failed.errors or failed.traces[0].last_error))
            rewards = [episode.traces[0].reward for episode in episodes]
            advantages = plex.grpo_advantages(rewards, group=len(rewards))
            played = [list(turns_of(episode.traces[0])) for episode in episodes]
            turns = [turn for episode in played for turn in episode]
            weights = [a for a, made in zip(advantages, played, strict=True) for _ in made]
            batch = plex.Batch.from_samples(turns, advantages=weights)
            await actor.forward_backward.aio(batch, loss="ppo")
            await actor.step.aio()
            reward = sum(rewards) / len(rewards)
            print(f"step {step:2}: reward {reward:.2f} in {len(turns)} turns", flush=True)
            job.report(step=step, reward=reward)


def main(model: str, base_url: str) -> None:
    """Run the job on the cluster that the environment names."""
    with plex.connect() as cluster, cluster.job("verifiers") as job:
        asyncio.run(train(job, str(Path(model).absolute()), base_url))


if __name__ == "__main__":
    main(*sys.argv[1:])
