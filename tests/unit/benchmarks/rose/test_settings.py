"""ROSE's settings, and the comparison of policies on them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.rose.coserved import Sharing
from benchmarks.rose.settings import LENT, compare_lending, lent_json

SMALL = replace(LENT["rose-8b-grpo"](), batch=16, steps=1)
SMALL = replace(SMALL, agents=replace(SMALL.agents, action_median=20, turns_median=3))


@pytest.mark.parametrize("name", LENT)
def test_every_setting_can_be_played(name: str) -> None:
    work = LENT[name]()
    assert work.name == name
    assert work.batch % work.group == 0
    assert work.serving.kv_tokens > work.agents.most_tokens
    assert work.lenders <= work.fleet


def test_a_comparison_is_json() -> None:
    found = compare_lending(SMALL, seed=1, policies=(Sharing.ALONE, Sharing.LENDING))
    told = json.loads(json.dumps(lent_json(found, preset=SMALL.name, seed=1)))
    assert told["policies"]["alone"]["speedup"] == 1
    assert set(told["policies"]) == {"alone", "lending"}
