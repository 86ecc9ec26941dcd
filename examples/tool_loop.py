"""A tool in the loop: a model of random weights learns to find a number by what a tool tells it.

Each episode is a session of turns: what the model writes goes to the tool, what that says goes
behind it. Make the model with `plexctl model new`, run `plexctl submit --attach tool_loop.py DIR`.
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import plexclient as plex

NUMBERS, TURNS, EPISODES = 4, 3, 64


def tool(wrote: str, secret: int) -> str:
    """Return what the tool says to what the model wrote."""
    if not wrote.isdigit():
        return "no number. "
    guess = int(wrote)
    return "yes." if guess == secret else "more. " if guess < secret else "less. "


def play(rollout: plex.Rollout, secret: int) -> tuple[list[plex.Sample], float]:
    """Return the turns of one episode, and its reward."""
    session, said = rollout.session(), "find it. "
    for turn in range(TURNS):
        said = tool(session.generate(said, max_tokens=1).text or "", secret)
        if said == "yes.":
            return session.turns, 1 - turn / (2 * TURNS)
    return session.turns, 0.0


def main(model: str, steps: str = "30") -> None:
    """Run one job."""
    episodes = ThreadPoolExecutor(EPISODES)
    with plex.connect() as cluster, cluster.job("tool-loop") as job:
        adamw = plex.AdamW(lr=1e-3)
        policy = plex.Declared("actor", model=model, backend="megatron", optimizer=adamw)
        engine = plex.Declared("rollout", model=policy, backend="vllm", max_model_len=96)
        actor, rollout = job.deploy_all(policy, engine)
        for step in range(int(steps)):
            rollout.sync(actor)
            secrets = [random.randrange(NUMBERS) for _ in range(EPISODES)]
            played = list(episodes.map(lambda secret: play(rollout, secret), secrets))
            rewards = [reward for _, reward in played]
            advantages = plex.grpo_advantages(rewards, group=EPISODES)
            turns = [turn for episode, _ in played for turn in episode]
            weights = [a for (made, _), a in zip(played, advantages, strict=True) for _ in made]
            batch = plex.Batch.from_samples(turns, advantages=weights)
            actor.forward_backward(batch, loss="ppo")
            actor.step()
            found = sum(reward > 0 for reward in rewards) / EPISODES
            print(f"step {step:2}: found {found:.0%} in {len(turns)} turns", flush=True)
            job.report(step=step, reward=sum(rewards) / EPISODES)


if __name__ == "__main__":
    main(*sys.argv[1:])
