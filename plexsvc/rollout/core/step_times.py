"""Times of an engine's steps, learned while it runs.

A step that computes `p` tokens of prompts and the next token of `d` samples takes about
`a + b p + c d`: so T_prefill of a prompt is `a + b length`, and T_decode of a batch `a + c batch`.
The three are fitted to the steps seen, older ones counting less. What is foretold is that fit
times a high quantile of how much longer recent steps of like length took than the fit said: a busy
machine, long contexts and whatever else the fit knows nothing of make it more careful. A pause of
the machine makes a short step ten times longer and a long one hardly, so lengths are kept apart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

KEPT: Final = 0.995
"""What a step counts for when the next one has come."""

MIN_STEPS: Final = 8
"""Before so many steps nothing is foretold."""

FIT_EVERY: Final = 16
"""Steps between two fits."""

RECENT: Final = 128
"""Steps of like length that the quantile is taken of."""

MIN_RECENT: Final = 16
"""Of fewer, the worst of other lengths counts."""

QUANTILE: Final = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step computes."""

    prompt_tokens: int = 0
    samples: int = 0
    """Samples that get their next token."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step that ended."""

    step: StepWork
    started_us: int


class StepForecast:
    """Fit of the times of one engine's steps.

    >>> times = StepForecast()
    >>> for i in range(64):
    ...     times.observe(StepWork(prompt_tokens=i % 7 * 32), took_us=2000 + i % 7 * 32 * 10)
    ...     times.observe(StepWork(samples=1 + i % 5), took_us=2000 + (1 + i % 5) * 500)
    >>> times.foretell_us(StepWork(prompt_tokens=100))
    3000
    >>> times.foretell_us(StepWork(samples=4))
    4000
    """

    def __init__(self) -> None:
        self._normal = [[0.0] * 3 for _ in range(3)]
        self._seen = [0.0] * 3
        self._fit: tuple[float, float, float] | None = None
        self._excess: dict[int, deque[float]] = {}
        """By the binary logarithm of the plain time."""
        self._factors: dict[int, float] = {}
        self._count = 0

    def observe(self, step: StepWork, *, took_us: int) -> None:
        """Take in how long a step took. `O(1)` but for every sixteenth."""
        took = max(1, took_us)
        if self._fit is not None:
            plain = self._plain_us(step)
            of_length = self._excess.setdefault(_length(plain), deque(maxlen=RECENT))
            of_length.append(took / plain)
        # Weighted by the inverse of the time, so that short steps are fitted as well as long ones.
        row = (1 / took, step.prompt_tokens / took, step.samples / took)
        for i, one in enumerate(row):
            self._seen[i] = self._seen[i] * KEPT + one
            for j, other in enumerate(row):
                self._normal[i][j] = self._normal[i][j] * KEPT + one * other
        self._count += 1
        if self._count >= MIN_STEPS and (self._fit is None or self._count % FIT_EVERY == 0):
            self._refit()

    def foretell_us(self, step: StepWork) -> int | None:
        """Return how long a step takes at most, nearly always; None while too few were seen."""
        if self._fit is None:
            return None
        plain = self._plain_us(step)
        known = self._factors.get(_length(plain))
        return round(plain * (known or max([1.0, *self._factors.values()])))

    def tokens_within(self, allowed_us: int, *, samples: int, most: int) -> int:
        """Return the most tokens, up to `most`, of a step of at most `allowed_us`.

        Next tokens of the `samples` come first. 0 when not even one fits, or nothing is known yet.
        """

        def fits(tokens: int) -> bool:
            decoded = min(tokens, samples)
            step = StepWork(prompt_tokens=tokens - decoded, samples=decoded)
            foretold = self.foretell_us(step)
            return foretold is not None and foretold <= allowed_us

        least, beyond = 0, most + 1
        while beyond - least > 1:
            middle = (least + beyond) // 2
            least, beyond = (middle, beyond) if fits(middle) else (least, middle)
        return least

    def _plain_us(self, step: StepWork) -> float:
        assert self._fit is not None
        fixed, each_prompt, each_sample = self._fit
        return max(1.0, fixed + each_prompt * step.prompt_tokens + each_sample * step.samples)

    def _refit(self) -> None:
        normal = np.array(self._normal)
        scale = np.sqrt(np.maximum(np.diag(normal), 1e-30))
        ridge = 1e-6 * np.eye(3)  # what was never seen to vary gets nothing
        solved = np.linalg.solve(normal / np.outer(scale, scale) + ridge, self._seen / scale)
        fixed, each_prompt, each_sample = (max(0.0, float(x)) for x in solved / scale)
        # An unseen kind of token is taken for as dear as the other, never for free.
        each = max(each_prompt, each_sample)
        self._fit = (fixed, each_prompt or each, each_sample or each)
        for length, of_length in self._excess.items():
            if len(of_length) >= MIN_RECENT:
                self._factors[length] = max(1.0, float(np.quantile(of_length, QUANTILE)))


def _length(plain_us: float) -> int:
    return int(plain_us).bit_length()
