"""GRPO in 40 lines: a model of random weights learns to answer in digits.

`plexctl model new tiny-qwen3 DIR` makes the model; `plexctl submit --attach examples/first_loop.py
DIR` runs this.
"""

import sys

import plexclient as plex

PROMPTS = ["one", "two", "three", "four"]
GROUP = 16


def main(model: str, steps: str = "20") -> None:
    """Run one job."""
    with plex.connect() as cluster, cluster.job("first-loop") as job:
        adamw = plex.AdamW(lr=1e-3)
        policy = plex.Declared("actor", model=model, backend="megatron", optimizer=adamw)
        engine = plex.Declared("rollout", model=policy, backend="vllm", max_model_len=32)
        actor, rollout = job.deploy_all(policy, engine)
        for step in range(int(steps)):
            rollout.sync(actor)
            samples = rollout.generate(PROMPTS, n=GROUP, max_tokens=12)
            rewards = [sum(c.isdigit() for c in s.text) / 12 for s in samples]
            advantages = plex.grpo_advantages(rewards, group=GROUP)
            batch = plex.Batch.from_samples(samples, advantages=advantages)
            actor.forward_backward(batch, loss="ppo")
            actor.step()
            reward = sum(rewards) / len(rewards)
            print(f"step {step:2}: {reward:.0%} of the characters are digits", flush=True)
            job.report(step=step, reward=reward)


if __name__ == "__main__":
    main(*sys.argv[1:])
