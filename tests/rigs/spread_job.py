"""A job whose actor spans two nodes and feeds a rollout; says how far it is from one on one rank.

`python -m tests.rigs.spread_job ADDRESS TOKEN MODEL` prints one JSON line.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import plexclient as plex
from tests.rigs.workloads import fixed_batch

PROMPT = [3, 4, 12, 5, 16]


def _train(job: plex.Job, name: str, model: str, parallel: plex.Parallel) -> plex.Actor:
    actor = job.deploy(
        name,
        role="actor",
        model=model,
        backend="megatron",
        parallel=parallel,
        optimizer=plex.AdamW(lr=1e-2),
    )
    actor.forward_backward(fixed_batch(1), loss="ppo")
    actor.forward_backward(fixed_batch(4, sequences=800, longest=40), loss="ppo")
    actor.step()
    return actor


def main(address: str, token: str, model: str) -> None:
    """Run the job and print what was found."""
    with plex.connect(address, token=token) as cluster, cluster.job("spread") as job:
        spread = _train(job, "spread", model, plex.Parallel(pp=2))
        single = _train(job, "single", model, plex.Parallel())
        batch = fixed_batch(2)
        forward = np.abs(spread.forward(batch).logprobs - single.forward(batch).logprobs).max()
        rollout = job.deploy("rollout", model=spread, backend="vllm", max_model_len=64)
        rollout.sync(spread)
        samples = rollout.generate([PROMPT], n=4, max_tokens=8, seed=0)
        sampled = plex.Batch.from_samples(samples, advantages=np.zeros(4))
        gaps = np.abs(spread.forward(sampled).logprobs - sampled.logprobs)[sampled.mask > 0]
        found = {
            "nodes": sorted({block.node_id for block in spread.info.blocks}),
            "forward": float(forward),
            "sampled": float(gaps.max()),
        }
    print(json.dumps(found))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
