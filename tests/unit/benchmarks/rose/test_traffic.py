"""Traffic of serving engines."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rose.traffic import Request, Traffic, faster, read_traffic
from plexsvc.errors import ErrorCode, PlexError


def test_generated_requests_have_the_statistics_that_are_stated() -> None:
    made = Traffic().draw(seconds=3600, seed=1)
    assert made == Traffic().draw(seconds=3600, seed=1)
    assert [one.at_us for one in made] == sorted(one.at_us for one in made)
    assert len(made) / 3600 == pytest.approx(5.53, rel=0.1)
    minutes = np.bincount([one.at_us // 60_000_000 for one in made])
    assert minutes.std() / minutes.mean() == pytest.approx(0.22, abs=0.08)
    assert np.median([one.prompt_tokens for one in made]) == pytest.approx(1020, rel=0.1)
    assert np.median([one.answer_tokens for one in made]) == pytest.approx(129, rel=0.1)


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_traces_of_both_kinds_are_read(tmp_path: Path) -> None:
    azure = write(
        tmp_path / "a.csv.gz", "timestamp,t_s,context_tokens,generated_tokens\nx,1.5,30,4\n"
    )
    assert read_traffic(azure) == [
        Request(at_us=1_500_000, prompt_tokens=30, answer_tokens=4, fresh_tokens=30)
    ]
    mooncake = write(
        tmp_path / "m.csv.gz",
        "timestamp_ms,input_tokens,output_tokens,hash_ids\n0,1100,5,1 2 3\n7,1200,6,1 2 9\n",
    )
    assert [one.fresh_tokens for one in read_traffic(mooncake)] == [1100, 1200 - 1024]


def test_another_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "b.csv.gz", "timestamp_ms,input_tokens\n1,x\n")
    with pytest.raises(PlexError, match="line 2") as caught:
        read_traffic(path)
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_traffic_is_scaled_in_rate_alone() -> None:
    made = Traffic().draw(seconds=60, seed=2)
    twice = faster(made, 2)
    assert [one.at_us for one in twice] == [round(one.at_us / 2) for one in made]
    assert [one.prompt_tokens for one in twice] == [one.prompt_tokens for one in made]
