"""Scores of samples, as the reward service gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a program made of one sample.

    `verdict` is `scored`, `timeout` (`value` is the program's timeout score) or `error`: there is
    no score, `value` is NaN, and `detail` says why. `time_s` is the time the stages ran, `queue_s`
    the time in queues. `output` is what the program printed, the middle of a long one cut.
    """

    index: int
    value: float
    verdict: str
    time_s: float
    queue_s: float
    output: str
    detail: str

    def __float__(self) -> float:
        return self.value


class Scores(Sequence[Score]):
    """The scores of a batch, in the order of its samples. NumPy reads it as their values."""

    def __init__(self, scores: Sequence[Score]) -> None:
        self._scores = tuple(scores)

    def __getitem__(self, index: Any) -> Any:
        return self._scores[index]

    def __len__(self) -> int:
        return len(self._scores)

    def __repr__(self) -> str:
        verdicts = Counter(score.verdict for score in self._scores)
        return f"Scores({', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray([score.value for score in self._scores], dtype=dtype or np.float64)

    @property
    def errors(self) -> list[Score]:
        """Those without a score."""
        return [score for score in self._scores if score.verdict == "error"]

    def filled(self, value: float) -> list[float]:
        """Return the values, `value` in place of each that is missing."""
        return [value if score.verdict == "error" else score.value for score in self._scores]
