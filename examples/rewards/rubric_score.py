"""Reward program: a rubric of the `verifiers` package (0.1.9 and later of 0.1).

`rubric.py` beside it holds `RUBRIC`, a `verifiers.Rubric`: `plexctl reward add mine
examples/rewards/rubric_score.py --file rubric.py`. The reference is the rubric's `answer`, `prompt`
and `info` are settings. `verifiers` must be installed where workers run.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any


def score(sample: SimpleNamespace) -> dict[str, Any]:
    """Return the rubric's weighted reward, and the metrics that it is made of."""
    from rubric import RUBRIC

    state: dict[str, Any] = {
        "prompt": sample.settings.get("prompt", ""),
        "completion": [{"role": "assistant", "content": sample.text}],
        "answer": sample.reference,
        "task": "default",
        "info": sample.settings.get("info", {}),
        "timing": {"scoring_ms": 0.0, "total_ms": 0.0},
    }
    asyncio.run(RUBRIC.score_rollout(state, nullcontext()))
    return {"score": state["reward"], "detail": str(state["metrics"])}
