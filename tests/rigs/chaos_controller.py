"""A campaign's controller: a process of its own that may be killed, and be followed by another.

It does what it is asked by a pipe, one operation at a time, and sends back what came of it. One
that follows takes over the job by its name, as `docs/recovery.md` says.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import plexclient as plex
from tests.rigs.workloads import PPO_ARGS, fixed_batch

PROMPTS: Final = [[3, 4, 12, 5, 16], [7, 8, 9]]
SAMPLING: Final = plex.SamplingOptions(n=2, max_tokens=48, temperature=1.0, ignore_eos=True)
STARTS_S: Final = 300.0
ENDS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Spec:
    """What a controller runs, and where."""

    address: str
    token: str
    name: str
    model: str
    sequences: int
    """Of each of its batches."""


@dataclass(frozen=True, slots=True)
class Ids:
    job: str
    actor: str
    rollout: str


class LostControllerError(Exception):
    """A controller's pipe has ended: what it was asked for last has no answer."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of the service, which no pipe carries as it is."""

    code: str
    message: str


class Loop:
    """What a controller may be asked for."""

    def __init__(self, job: plex.Job, spec: Spec) -> None:
        self._job, self._sequences = job, spec.sequences
        self._actor = job.deploy(
            "actor",
            model=spec.model,
            backend="megatron",
            optimizer=plex.AdamW(lr=1e-2),
            seed=len(spec.name),
            micro_batch_tokens=512,
            durability="step",
        )
        self._rollout = job.deploy("rollout", model=self._actor, backend="vllm", max_model_len=128)

    def begin(self) -> tuple[Ids, int]:
        """Return what there is, and how many steps it has done."""
        ids = Ids(self._job.job_id, self._actor.deployment_id, self._rollout.deployment_id)
        return ids, self._actor.position or 0

    def forward_backward(self, seed: int) -> Any:
        batch = fixed_batch(seed, sequences=self._sequences)
        return self._actor.forward_backward(batch, loss="ppo", **PPO_ARGS).metrics

    def step(self, position: int) -> Any:
        return self._actor.step(position=position).metrics

    def save(self, path: str) -> None:
        self._actor.save(path)

    def load(self, path: str, position: int) -> None:
        self._actor.load(path, optimizer=True, position=position)

    def sync(self) -> None:
        self._rollout.sync(self._actor)

    def generate(self, seed: int) -> Any:
        samples = self._rollout.generate(PROMPTS, seed=seed, **SAMPLING)
        keyed = {(one.prompt_index, one.sample_index): one.tokens for one in samples}
        return sorted(keyed.items())

    def score(self, number: int) -> list[float]:
        code = [f"import time; time.sleep(0.2); print({number})"] * 4
        tests = [[{"stdout": str(number + i % 2)}] for i in range(4)]
        scored = self._job.score("code_python", code, references=tests)
        return [one.value for one in scored]

    def digest(self) -> Any:
        return self._actor.digest()


def _serve(pipe: Connection, spec: Spec, resumes: bool) -> None:
    """Be a controller: answer until told to end, or until nobody asks any more."""
    try:
        with (
            plex.connect(spec.address, token=spec.token) as cluster,
            cluster.job(spec.name, resume=resumes) as job,
        ):
            loop = Loop(job, spec)
            pipe.send(loop.begin())
            while asked := pipe.recv():
                method, *arguments = asked
                pipe.send(getattr(loop, method)(*arguments))
    except plex.PlexError as error:
        pipe.send(Failed(error.code, error.message))


@dataclass(slots=True)
class Controller:
    """A controller that runs."""

    pid: int
    ids: Ids
    position: int
    """Steps that were done when it began."""
    _pipe: Connection
    _hands: ThreadPoolExecutor

    @classmethod
    @contextmanager
    def started(cls, spec: Spec, *, resumes: bool) -> Iterator[Controller]:
        """Start one. At the end it ends its job; if an error leaves, the job fails with it."""
        spawning = multiprocessing.get_context("spawn")
        pipe, its_pipe = spawning.Pipe()
        process = spawning.Process(target=_serve, args=(its_pipe, spec, resumes), daemon=True)
        process.start()
        its_pipe.close()
        try:
            with ThreadPoolExecutor(1) as hands:
                assert process.pid is not None
                assert pipe.poll(STARTS_S), f"no controller of {spec.name}"
                ids, position = _heard(pipe)
                yield cls(process.pid, ids, position, pipe, hands)
                pipe.send(None)
                process.join(ENDS_S)
        finally:
            pipe.close()
            process.join(ENDS_S)
            process.kill()
        assert process.exitcode == 0, f"{spec.name} ended with {process.exitcode}"

    def submit(self, method: str, *arguments: object) -> Future[Any]:
        """Ask for an operation. The future raises `LostControllerError`, or the service's error."""
        return self._hands.submit(self._ask, method, *arguments)

    def _ask(self, *asked: object) -> Any:
        with suppress(OSError):
            self._pipe.send(asked)
        return _heard(self._pipe)


def _heard(pipe: Connection) -> Any:
    """Return what a controller says next."""
    try:
        found = pipe.recv()
    except (EOFError, OSError) as error:
        raise LostControllerError from error
    if isinstance(found, Failed):
        raise plex.PlexError(found.code, found.message)
    return found
