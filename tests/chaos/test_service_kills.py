"""The service is killed again and again at random moments under jobs: no bit, no score changes.

`PLEX_CHAOS_KILLS` says how often (`make chaos`), `PLEX_CHAOS_SEED` when.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import pytest

import plexclient as plex
from tests.rigs.live_cluster import ROLLOUT, TRAIN, Service
from tests.rigs.workloads import Program

KILLS: Final = int(os.environ.get("PLEX_CHAOS_KILLS", "3"))  # noqa: TID251 - of `make chaos`
SEED: Final = int(os.environ.get("PLEX_CHAOS_SEED", "22"))  # noqa: TID251 - of `make chaos`
LONGEST_PAUSE_S: Final = 1.5
"""From when the service is up to its death."""
LONGEST_BOOT_S: Final = 6.0
"""The same for one that dies while it takes over."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(240 + 60 * KILLS),
]

SIZES: Final = {"inline": 6, "staged": 220}
"""Sequences of each job's batches: some go inside their operation, others by the node's memory."""


@dataclass(slots=True)
class Training:
    """One job on fixed data, and how far it is."""

    name: str
    model: Path
    steps: int = 0
    has_stepped: threading.Event = field(default_factory=threading.Event)

    def run(self, connection: plex.Cluster, *, until: Callable[[int], bool]) -> dict[str, str]:
        """Train until `until(steps)`; return what came of it."""
        with connection.job(self.name) as job:
            actor = job.deploy(
                "actor",
                model=str(self.model),
                backend="megatron",
                optimizer=plex.AdamW(lr=1e-2),
                seed=len(self.name),
                micro_batch_tokens=512,
            )
            while not until(self.steps):
                program = Program(actor, self.steps, steps=1, sequences=SIZES[self.name])
                for _ in program.operations():
                    pass
                self.steps += 1
                self.has_stepped.set()
            return actor.digest()

    def steps_again(self) -> None:
        """Return when it has finished one more step."""
        self.has_stepped.clear()
        assert self.has_stepped.wait(60), f"{self.name} stands still"


@dataclass(slots=True)
class Sampling:
    """A job that generates and publishes nothing; its answers are not promised to the bit."""

    model: Path
    batches: int = 0

    def run(self, connection: plex.Cluster, *, stop: threading.Event) -> None:
        """Generate until `stop`."""
        with connection.job("samples") as job:
            rollout = job.deploy("rollout", model=str(self.model), backend="vllm")
            while not stop.is_set():
                samples = rollout.generate(["1+1="], n=4, max_tokens=64, temperature=1.0)
                assert sorted(sample.sample_index for sample in samples) == [0, 1, 2, 3]
                self.batches += 1


@dataclass(slots=True)
class Grading:
    """A job whose samples are programs that run for a while, and what each must get."""

    batches: int = 0

    def run(self, connection: plex.Cluster, *, stop: threading.Event) -> None:
        """Score until `stop`."""
        with connection.job("grades") as job:
            while not stop.is_set():
                code = [f"import time; time.sleep(0.2); print({self.batches})"] * 6
                tests = [[{"stdout": str(self.batches + i % 2)}] for i in range(6)]
                scores = job.score("code_python", code, references=tests)
                assert [score.value for score in scores] == [1.0, 0.0] * 3
                self.batches += 1


def kill_again_and_again(
    service: Service, jobs: Sequence[Training], away_s: list[float]
) -> Counter[str]:
    """Kill the service at random moments, and start it; return at which.

    `away_s` gets the time from each kill to the next step of some job.
    """
    dice, moments = random.Random(SEED), Counter[str]()
    while moments.total() < KILLS:
        for job in dice.sample(jobs, k=dice.randint(0, len(jobs))):
            job.steps_again()
        time.sleep(dice.uniform(0, LONGEST_PAUSE_S))  # noqa: TID251 - a random moment
        service.kill()
        killed_s = time.monotonic()
        moments["up"] += 1
        if moments.total() < KILLS and dice.random() < 1 / 3:
            service.launch()
            time.sleep(dice.uniform(0, LONGEST_BOOT_S))  # noqa: TID251 - a random moment
            service.kill()
            moments["taking over"] += 1
        service.start()
        dice.choice(jobs).steps_again()
        away_s.append(time.monotonic() - killed_s)
    return moments


def test_two_jobs_end_as_if_their_service_had_never_been_killed(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    jobs = [Training(name, tiny_model) for name in SIZES]
    with (
        Service(tmp_path, nodes={"only": [TRAIN, ROLLOUT]}) as service,
        service.live.connect() as connection,
        ThreadPoolExecutor(4) as threads,
    ):
        running = [
            threads.submit(job.run, connection, until=lambda _: stop.is_set()) for job in jobs
        ]
        sampling, away_s = Sampling(tiny_model), list[float]()
        generating = threads.submit(sampling.run, connection, stop=stop)
        grading = Grading()
        scoring = threads.submit(grading.run, connection, stop=stop)
        try:
            for job in jobs:
                job.steps_again()
            moments = kill_again_and_again(service, jobs, away_s)
            for job in jobs:
                job.steps_again()
        finally:
            stop.set()
        found = [job.result() for job in running]
        generating.result()
        scoring.result()
        with capsys.disabled():
            counts = f"steps {[job.steps for job in jobs]}, generates {sampling.batches}"
            counts += f", scores {grading.batches}"
            print(f"\nseed {SEED}, kills {dict(moments)}, {counts}; away {median(away_s):.1f} s")  # noqa: T201
        assert {job.reason for job in service.live.jobs().values()} == {""}
        for job, digest in zip(jobs, found, strict=True):
            again = Training(job.name, tiny_model)
            assert again.run(connection, until=job.steps.__eq__) == digest
