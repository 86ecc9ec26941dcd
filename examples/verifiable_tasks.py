"""Verifiable tasks as short character prompts, with held-out ones kept apart.

Those of reasoning-gym have one right answer. In the others a small Python function is to be
written; the reward service runs it in its sandbox.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

HELD_OUT_SEED: Final = 10**9
HELD_OUT: Final = 128
DATASET_SIZE: Final = 10**6
"""Problems behind one seed; they are made when asked for."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One prompt, the answer a teacher would give, and how to score another."""

    prompt: str
    answer: str
    score: Callable[[str], float] | None = None
    tests: list[dict[str, Any]] | None = None
    """What the reward service tests a program with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Where problems come from, and how their answers are scored."""

    make: Callable[[int], Iterator[Problem]]
    """Problems of a seed."""
    program: str = ""
    """The program of the reward service that scores answers; empty: `Problem.score` does."""
    max_tokens: int = 8
    """Tokens of an answer."""

    def problems(self, seed: int) -> Iterator[Problem]:
        """Yield training problems without end; none of them is held out."""
        held_out = {problem.prompt for problem in self.held_out()}
        while True:
            for problem in self.make(seed * DATASET_SIZE):
                if problem.prompt not in held_out:
                    yield problem
            seed += 1

    def held_out(self) -> list[Problem]:
        """Return the `HELD_OUT` distinct problems that no training prompt repeats."""
        found: dict[str, Problem] = {}
        for problem in self.make(HELD_OUT_SEED):
            found.setdefault(problem.prompt, problem)
            if len(found) == HELD_OUT:
                break
        return list(found.values())


def reasoning_gym_task(dataset: str, prompt: Callable[[Entry], str], **settings: int) -> Task:
    """Return a dataset of reasoning-gym; `prompt` says how its entries look to the model."""

    def make(seed: int) -> Iterator[Problem]:
        made = reasoning_gym.create_dataset(dataset, seed=seed, size=DATASET_SIZE, **settings)
        for entry in made:
            yield Problem(
                prompt=prompt(entry),
                answer=entry["answer"].lower(),
                score=partial(_score, made, entry),
            )

    return Task(make=make)


def code_task(draw: Callable[[random.Random], tuple[str, str, list[int]]]) -> Task:
    """Return a task to write a function; `draw` gives a prompt, a right answer and inputs."""

    def make(seed: int) -> Iterator[Problem]:
        dice = random.Random(seed)
        while True:
            prompt, expression, inputs = draw(dice)
            expected = [eval(expression, {"x": x}) for x in inputs]  # our own expression
            test = {"call": f"[f(x) for x in {inputs}]", "equals": expected}
            yield Problem(prompt=prompt, answer=f"f=lambda x:{expression}", tests=[test])

    return Task(make=make, program="code_python", max_tokens=32)


def _polynomial(dice: random.Random) -> tuple[str, str, list[int]]:
    a, b, c = (dice.randint(1, 9) for _ in range(3))
    first, second = dice.choice("+-"), dice.choice("+-")
    return f"{a}xx{first}{b}x{second}{c}#", f"{a}*x*x{first}{b}*x{second}{c}", [0, 1, 2, 10]


def _choice(dice: random.Random) -> tuple[str, str, list[int]]:
    limit, low, high = (dice.randint(0, 19) for _ in range(3))
    order = dice.choice("<>")
    prompt = f"x{order}{limit}?{low}:{high}#"
    return prompt, f"{low} if x{order}{limit} else {high}", [limit - 1, limit, limit + 1]


def _score(dataset: ProceduralDataset, entry: Entry, text: str) -> float:
    """Return 1 where the dataset gives the whole mark, else 0."""
    return float(dataset.score_answer(text, entry) >= 1.0)


TASKS: Final = {
    "count_bits": reasoning_gym_task(
        "count_bits", lambda entry: f"{entry['metadata']['binary']}#", min_n=1, max_n=2**14 - 1
    ),
    "spell_backward": reasoning_gym_task(
        "spell_backward",
        lambda entry: f"{entry['metadata']['word'].lower()}<",
        min_word_len=4,
        max_word_len=4,
    ),
    "chain_sum": reasoning_gym_task(
        "chain_sum",
        lambda entry: f"{entry['metadata']['expression'].replace(' ', '')}=",
        min_terms=2,
        max_terms=2,
        min_digits=1,
        max_digits=2,
    ),
    "write_polynomial": code_task(_polynomial),
    "write_choice": code_task(_choice),
}


def demonstrations(task: Task, *, seed: int, wrong_share: float) -> Iterator[tuple[str, str]]:
    """Yield (prompt, answer) pairs as an imperfect teacher writes them.

    `wrong_share` of the answers belong to another problem, so that a model taught by them can do
    more than it does: what reinforcement then brings out.
    """
    dice = random.Random(seed)
    problems = task.problems(seed)
    for problem in problems:
        source = next(problems) if dice.random() < wrong_share else problem
        yield problem.prompt, source.answer
