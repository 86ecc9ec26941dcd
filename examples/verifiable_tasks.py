"""Verifiable tasks of reasoning-gym as short character prompts, with held-out ones kept apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
    score: Callable[[str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A reasoning-gym dataset and how its problems look to a character model."""

    dataset: str
    settings: dict[str, int] = field(default_factory=dict)
    prompt: Callable[[Entry], str]

    def problems(self, seed: int) -> Iterator[Problem]:
        """Yield training problems without end; none of them is held out."""
        held_out = {problem.prompt for problem in self.held_out()}
        while True:
            for problem in self._all(seed * DATASET_SIZE):
                if problem.prompt not in held_out:
                    yield problem
            seed += 1

    def held_out(self) -> list[Problem]:
        """Return the `HELD_OUT` distinct problems that no training prompt repeats."""
        found: dict[str, Problem] = {}
        for problem in self._all(HELD_OUT_SEED):
            found.setdefault(problem.prompt, problem)
            if len(found) == HELD_OUT:
                break
        return list(found.values())

    def _all(self, seed: int) -> Iterator[Problem]:
        dataset = reasoning_gym.create_dataset(
            self.dataset, seed=seed, size=DATASET_SIZE, **self.settings
        )
        for entry in dataset:
            yield Problem(
                prompt=self.prompt(entry),
                answer=entry["answer"].lower(),
                score=partial(_score, dataset, entry),
            )


def _score(dataset: ProceduralDataset, entry: Entry, text: str) -> float:
    """Return 1 where the dataset gives the whole mark, else 0."""
    return float(dataset.score_answer(text, entry) >= 1.0)


TASKS: Final = {
    "count_bits": Task(
        dataset="count_bits",
        settings={"min_n": 1, "max_n": 2**14 - 1},
        prompt=lambda entry: f"{entry['metadata']['binary']}#",
    ),
    "spell_backward": Task(
        dataset="spell_backward",
        settings={"min_word_len": 4, "max_word_len": 4},
        prompt=lambda entry: f"{entry['metadata']['word'].lower()}<",
    ),
    "chain_sum": Task(
        dataset="chain_sum",
        settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
        prompt=lambda entry: f"{entry['metadata']['expression'].replace(' ', '')}=",
    ),
}
MAX_ANSWER_TOKENS: Final = 8


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
