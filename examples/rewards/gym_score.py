"""Reward program: the scorer of a reasoning-gym data set.

`plexctl reward add gym examples/rewards/gym_score.py`, then `job.score("gym", samples,
references=entries)`, where a reference is the entry that the prompt was made of.
"""

from __future__ import annotations

from types import SimpleNamespace

from reasoning_gym.factory import get_score_answer_fn


def score(sample: SimpleNamespace) -> float:
    """Return the data set's own score of an answer."""
    entry = sample.reference
    return get_score_answer_fn(entry["metadata"]["source_dataset"])(sample.text, entry)
