"""Reward program: a reward function of TRL.

`reward.py` beside it holds `reward(prompts, completions, **columns)`: `plexctl reward add mine
examples/rewards/trl_score.py --file reward.py`. The reference is the column `answer`; `prompt` and
further columns are settings.
"""

from __future__ import annotations

from types import SimpleNamespace


def score(sample: SimpleNamespace) -> float:
    """Return what the function gives for one completion; None counts as 0, as in TRL."""
    from reward import reward

    settings = dict(sample.settings)
    prompts = [settings.pop("prompt", "")]
    columns = {name: [value] for name, value in settings.items()}
    (found,) = reward(
        prompts=prompts, completions=[sample.text], answer=[sample.reference], **columns
    )
    return float(found or 0.0)
