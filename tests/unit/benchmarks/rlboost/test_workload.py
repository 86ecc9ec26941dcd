"""Files of rollout workloads: what is written is read, and what cannot be is refused by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rlboost.settings import rollout_preset
from benchmarks.rlboost.workload import LengthModel, read_workload, write_workload
from plexsvc.errors import PlexError


def test_a_written_workload_is_read_the_same(tmp_path: Path) -> None:
    workload = rollout_preset("rlboost-b-32b")
    assert read_workload(write_workload(tmp_path, workload)) == workload


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": 0}, "prompts"),
        ({"prompts": "many"}, "prompts"),
        ({"prizes": 3}, "prizes"),
        ({"trainer": {"engines": 4}}, "trainer"),
        ({"spot.price": -1}, "price"),
        ({"profile.fixed_us": 0}, "fixed_us"),
        ({"profile.speed": 0}, "speed"),
        ({"spot.most": -2}, "most"),
        ({"spot.changes": [{"at_us": 5, "slot": "a", "is_add": False}]}, "one that is there"),
        (
            {"spot.changes": [{"at_us": 5, "slot": s, "is_add": True} for s in "aa"]},
            r"changes\[1\].*one that is not there",
        ),
        (
            {
                "spot.changes": [
                    {"at_us": 5, "slot": "a", "is_add": True},
                    {"at_us": 4, "slot": "a", "is_add": False},
                ]
            },
            "before the change above",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = write_workload(tmp_path, rollout_preset("spot-2-8b"))
    values = json.loads(path.read_text())
    for name, value in change.items():
        *folder, field = name.split(".")
        (values[folder[0]] if folder else values)[field] = value
    path.write_text(json.dumps(values))
    with pytest.raises(PlexError, match=said) as refused:
        read_workload(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match="could not be read"):
        read_workload(tmp_path / "none.json")


def test_lengths_of_a_prompt_resemble_each_other_and_end_at_the_most() -> None:
    model = LengthModel(median=100, prompt_sigma=1.0, sample_sigma=0.1, most=300)
    drawn = model.draw(prompts=200, samples=4, seed=(1, 2))
    assert drawn == model.draw(prompts=200, samples=4, seed=(1, 2))
    flat = [length for lengths in drawn for length in lengths]
    assert min(flat) >= 1
    assert max(flat) == 300
    within = [max(lengths) / min(lengths) for lengths in drawn]
    assert sorted(within)[100] < 2 < max(flat) / min(flat)
