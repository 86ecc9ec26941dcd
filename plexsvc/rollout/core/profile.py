"""Throughput profile of a deployment's instances, taken while they generate.

A decoding step of `B` samples with `L` tokens of context each takes `a + b B + c B L`: a fixed part
(the weights are read once), and a part for each sample that grows with its context. The three are
fitted to what instances did between ticks; older observations count less. From them follows the
batch from which on a larger one adds little throughput.
"""

from __future__ import annotations

from typing import Final

import numpy as np

PLATEAU: Final = 0.8
"""Share of the highest throughput at which a batch counts as large enough."""

KEPT: Final = 0.98
"""What an observation counts for when the next one has come."""

MIN_OBSERVATIONS: Final = 8


class StepTimeFit:
    """Fit of step times.

    >>> profile = StepTimeFit()
    >>> for batch in (2, 4, 8, 16, 32, 64) * 2:
    ...     profile.observe(batch=batch, context=100, tokens_per_s=batch / (0.008 + 0.001 * batch))
    >>> profile.plateau(context=100)
    32
    """

    def __init__(self) -> None:
        self._normal = [[0.0] * 3 for _ in range(3)]
        self._seen = [0.0] * 3
        self._count = 0

    def observe(self, *, batch: float, context: float, tokens_per_s: float) -> None:
        """Take in that `batch` samples of `context` tokens each made so many tokens a second."""
        # Times grow with the batch; weighted by its inverse, every observation counts alike.
        row = (1 / batch, 1.0, context / 1000)
        for i, one in enumerate(row):  # plain floats: numpy takes ten times as long for so few
            self._seen[i] = self._seen[i] * KEPT + one / tokens_per_s
            for j, other in enumerate(row):
                self._normal[i][j] = self._normal[i][j] * KEPT + one * other
        self._count += 1

    def plateau(self, *, context: float, share: float = PLATEAU) -> int | None:
        """Return the batch that has so much of the highest throughput; None if not known yet."""
        fit = self._fit()
        if fit is None:
            return None
        fixed, each, more = fit
        growing = each + more * context / 1000
        if fixed <= 0 or growing <= 0:
            return None
        return max(1, round(share / (1 - share) * fixed / growing))

    def _fit(self) -> tuple[float, float, float] | None:
        """Return the fixed part, a sample's and that of 1,000 tokens of context, in seconds."""
        if self._count < MIN_OBSERVATIONS:
            return None
        ridge = 1e-9 * np.eye(3)  # without variety of contexts the last two cannot be told apart
        found = np.linalg.solve(np.array(self._normal) + ridge, np.array(self._seen))
        fixed, each, more = map(float, found)
        return fixed, each, more
