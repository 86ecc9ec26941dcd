"""Scores as the loop sees them."""

from __future__ import annotations

import math

import numpy as np

from plexclient.scores import Score, Scores


def score(index: int, value: float, verdict: str) -> Score:
    return Score(
        index=index, value=value, verdict=verdict, time_s=0, queue_s=0, output="", detail=""
    )


def test_scores_show_what_became_of_the_samples() -> None:
    scores = Scores(
        [score(0, 1.0, "scored"), score(1, -1.0, "timeout"), score(2, math.nan, "error")]
    )
    assert repr(scores) == "Scores(1 scored, 1 timeout, 1 error)"
    assert scores.filled(0.0) == [1.0, -1.0, 0.0]
    assert [one.index for one in scores.errors] == [2]
    assert np.isnan(np.asarray(scores)[2])
