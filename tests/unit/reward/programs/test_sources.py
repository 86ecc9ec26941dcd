"""Python files with `score`: what cannot be one is refused by its line, and nothing of it runs."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.reward.programs.sources import MAX_SOURCE_BYTES, check_source


@pytest.mark.parametrize(
    "source",
    [
        b"def score(sample): return 1.0",
        b"score = lambda sample: 1.0",
        b"from rules import exact as score",
        b"from rules import *",
        b"try:\n    from fast import score\nexcept ImportError:\n    from slow import score",
        b"if True:\n    def score(sample): return 0.5",
        b"# -*- coding: latin-1 -*-\nNAME = '\xe9'\ndef score(sample): return 0.0",
    ],
)
def test_whatever_binds_score_is_taken(source: bytes) -> None:
    check_source("score.py", source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"x = 1\ndef score(sample:\n    pass", "score.py line 2: "),
        (b"def score(sample):\nreturn 1", "score.py line 2: expected an indented block"),
        (b"def scores(sample): return 1.0", "binds no `score`"),
        (b"class A:\n    def score(self): return 1.0", "binds no `score`"),
        (b"def main():\n    score = 1", "binds no `score`"),
        (b"", "binds no `score`"),
        (b"score = 1\x00", "null bytes"),
        (b"score = '\xff'", "score.py line 1: "),
        (b"score = " + b"-" * 100_000 + b"1", "score.py"),
        (b"score = " + b"(" * 1_000 + b")" * 1_000, "score.py"),
        (b"#" * (MAX_SOURCE_BYTES + 1), "files that it imports"),
    ],
)
def test_what_cannot_score_is_refused_with_its_reason(source: bytes, text: str) -> None:
    with pytest.raises(PlexError, match=text) as refused:
        check_source("score.py", source)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert refused.value.facts["field"] == "stages.python"


def test_nothing_of_a_file_runs(capsys: pytest.CaptureFixture[str]) -> None:
    check_source("score.py", b"print('ran')\nimport none_such\ndef score(sample): return 1.0")
    assert capsys.readouterr().out == ""
