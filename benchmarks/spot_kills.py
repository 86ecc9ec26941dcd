"""Kills of spot instances on real engines: what a job's samples lose by them.

    python -m benchmarks.spot_kills [--kills 200] [--seed 11]

A job with a dedicated and two spot vLLM engines (tiny model, float32, CPU) generates 8 samples of
300 tokens again and again, by turns drawn with seeds and greedy. At three drawn tokens of each
generate a spot instance is killed with kill -9, if there is one: perhaps it is still joining.
Counts the samples that are not complete, the positions that did not come once, the tokens that
changed after the client saw them, and the samples that differ from the undisturbed run's. Where one
differs, the job's trainer scores both tokens at the first position that does: `logits_apart` is how
far their logits lie apart, and `decided_by` how far what decided lies apart, which for a draw is
the logit less the logarithm of its noise. Prints one JSON line; fails unless all are complete, 99 %
are equal, and the rest within 1e-3.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

import plexclient as plex
from benchmarks.service import report
from plexsvc.rollout.sampling import draw_seed, root_of_seed, sample_seed
from tests.rigs.live_cluster import LiveCluster, start_cluster
from tests.rigs.spot_cluster import (
    NODES,
    PROMPTS,
    generate_under_kills,
    tokens,
    wait_until_serving,
)
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.workloads import VOCAB, fixed_batch

SEED: Final = 7
LENGTH: Final = 300
KILLS: Final = 3
WANTED_EQUAL: Final = 0.99
CLOSE: Final = 1e-3
OPTIONS: Final = {
    name: plex.SamplingOptions(
        n=2, max_tokens=LENGTH, temperature=temperature, seed=SEED, ignore_eos=True
    )
    for name, temperature in (("drawn", 1.0), ("greedy", 0.0))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A sample that went on otherwise than undisturbed."""

    kind: str
    prompt: int
    sample: int
    position: int
    logits_apart: float
    decided_by: float


class Kills:
    """One job under kills, and what was counted."""

    def __init__(self, cluster: LiveCluster, job: plex.Job, model: Path, *, seed: int) -> None:
        self._cluster, self._dice = cluster, random.Random(seed)
        self._actor = job.deploy(
            "actor", model=str(model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        self._rollout = job.deploy(
            "rollout",
            model=self._actor,
            backend="vllm",
            max_model_len=512,
            instances=plex.Elastic(dedicated=1, spot=(0, 2)),
        )
        self._actor.forward_backward(fixed_batch(1), loss="ppo")
        self._actor.step()
        self._version = self._rollout.sync(self._actor)
        self._undisturbed = {
            name: tokens(self._rollout.generate(PROMPTS, **options))
            for name, options in OPTIONS.items()
        }
        self.kills = self.generates = self.incomplete = self.repeated = self.changed = 0
        self.samples = self.other_versions = 0
        self.differences: list[Difference] = []

    def once(self) -> None:
        """Run one generate, kill instances, and count."""
        kind = list(OPTIONS)[self.generates % len(OPTIONS)]
        wait_until_serving(self._cluster, self._rollout, 1)
        done = generate_under_kills(
            self._cluster, self._rollout, OPTIONS[kind], kills=KILLS, dice=self._dice
        )
        found = tokens(done.samples)
        self.generates += 1
        self.kills += done.kills
        self.samples += len(found)
        self.incomplete += sum(len(one) != LENGTH for one in found)
        self.incomplete += len(self._undisturbed[kind]) - len(found)
        self.repeated += done.repeated
        seen = [done.seen[key] for key in sorted(done.seen)]
        self.changed += sum(a != b for a, b in zip(found, seen, strict=True))
        self.other_versions += sum(set(one.versions) != {self._version} for one in done.samples)
        pairs = zip(sorted(done.seen), found, self._undisturbed[kind], strict=True)
        for key, tokens_now, tokens_then in pairs:
            if tokens_now != tokens_then:
                self.differences.append(self._difference(kind, key, tokens_now, tokens_then))

    def _difference(
        self, kind: str, key: tuple[int, int], now: Sequence[int], then: Sequence[int]
    ) -> Difference:
        at = next(i for i, (a, b) in enumerate(zip(now, then, strict=True)) if a != b)
        scores = []
        for token in (now[at], then[at]):
            sequence = [*PROMPTS[key[0]], *now[:at]]
            targets = [0] * (len(sequence) - 1) + [token]
            batch = plex.Batch(
                tokens=np.array(sequence, np.int32),
                cu_seqlens=np.array([0, len(sequence)], np.int32),
                target_tokens=np.array(targets, np.int32),
            )
            scores.append(float(self._actor.forward(batch).logprobs[-1]))
        noise = _noise(key, position=at) if kind == "drawn" else np.zeros(VOCAB)
        decisive = [
            score - noise[token] for score, token in zip(scores, (now[at], then[at]), strict=True)
        ]
        return Difference(
            kind=kind,
            prompt=key[0],
            sample=key[1],
            position=at,
            logits_apart=abs(scores[0] - scores[1]),
            decided_by=abs(decisive[0] - decisive[1]),
        )


def _noise(key: tuple[int, int], *, position: int) -> np.typing.NDArray[np.float64]:
    """Return the logarithm of what the engine divides probabilities by to draw a token."""
    import torch

    seed = sample_seed(root_of_seed(SEED), prompt_index=key[0], sample_index=key[1])
    generator = torch.Generator().manual_seed(draw_seed(seed, position=position))
    drawn = torch.empty(VOCAB).exponential_(generator=generator)
    found: np.typing.NDArray[np.float64] = drawn.double().log().numpy()
    return found


def main() -> None:
    """Kill, count and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pxk") as place:
        model = make_qwen3(Path(place) / "model", seed=0)
        with (
            start_cluster(Path(place), nodes=NODES) as cluster,
            cluster.connect() as connection,
            connection.job("killed") as job,
        ):
            made = Kills(cluster, job, model, seed=options.seed)
            while made.kills < options.kills:
                made.once()
                print(f"{made.kills} kills", file=sys.stderr, flush=True)
        log = (Path(place) / "up.log").read_text()
    moved = sum(
        int(count) for count in re.findall(r"samples continue elsewhere.* samples=(\d+)", log)
    )
    equal = 1 - len(made.differences) / made.samples
    farthest = max((one.decided_by for one in made.differences), default=0.0)
    report(
        kills=made.kills,
        generates=made.generates,
        samples_continued_elsewhere=moved,
        samples=made.samples,
        incomplete=made.incomplete,
        positions_not_once=made.repeated,
        samples_that_changed=made.changed,
        samples_of_other_versions=made.other_versions,
        equal_share=equal,
        differences=[asdict(one) for one in made.differences],
        seconds=round(time.monotonic() - started_s),
    )
    flaws = made.incomplete + made.repeated + made.changed + made.other_versions
    if flaws or equal < WANTED_EQUAL or farthest > CLOSE or math.isnan(farthest):
        sys.exit("kills cost the job samples, or changed them")


if __name__ == "__main__":
    main()
