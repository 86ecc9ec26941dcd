"""Programs of one's own as they are sent: their files, and the version that a batch keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from plexclient.errors import ErrorCode, PlexError
from plexclient.programs import MAX_PROGRAM_BYTES
from tests.fakes.fake_router import FakeRouter, Fault
from tests.unit.client.conftest import Loop


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "score.py").write_text("def score(sample): return 1")
    (tmp_path / "words.txt").write_text("a b")
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    return tmp_path


def test_a_python_file_is_a_program_of_one_stage(loop: Loop, router: FakeRouter) -> None:
    version = loop.job.reward("own", "judge/score.py", files=["words.txt"], timeout_s=5)
    assert version == "1"
    (sent,) = router.programs
    assert (sent.name, sent.timeout_score) == ("own", -1)
    assert dict(sent.files) == {"score.py": b"def score(sample): return 1", "words.txt": b"a b"}
    (stage,) = sent.stages
    assert (stage.python, stage.timeout_us, stage.resource) == ("score.py", 5_000_000, "cpu")


def test_stages_bring_the_files_that_their_commands_name(loop: Loop, router: FakeRouter) -> None:
    stages = [
        plex.Stage(name="run", command="./run.sh words.txt none.txt", timeout_s=1, count=2),
        plex.Stage(name="judge", python="judge/score.py", timeout_s=1),
    ]
    loop.job.reward("own", stages)
    loop.job.reward("own", stages, files=["judge"])
    named, given = router.programs
    assert set(named.files) == {"run.sh", "words.txt", "judge/score.py"}
    assert set(given.files) == {"score.py"}
    assert named.stages[0].count == 2


def test_what_cannot_be_sent_is_refused_before(loop: Loop, router: FakeRouter, here: Path) -> None:
    (here / "large").write_bytes(bytes(MAX_PROGRAM_BYTES))
    wrong: Any
    for wrong, files, text in (
        ("none.py", None, "cannot be read"),
        (None, None, "program is None; it must be a Python file's path or a list of plex.Stage"),
        (["run.sh"], None, "stage 0 is 'run.sh'; it must be a plex.Stage"),
        ("judge/score.py", ["large"], "at most"),
        ([plex.Stage(name="x", command="true", timeout_s=-1)], None, "timeout_s=-1"),
        ([plex.Stage(name="x", command="true", timeout_s=1, count=0)], None, "count=0"),
    ):
        with pytest.raises(PlexError, match=text) as refused:
            loop.job.reward("own", wrong, files=files)
        assert refused.value.code is ErrorCode.BAD_REQUEST
    assert router.programs == []


def test_a_batch_keeps_the_version_of_its_first_reply(loop: Loop, router: FakeRouter) -> None:
    router.program_version = "v1"
    router.fail("Score", Fault(cut_after=1))
    loop.job.score("own", ["a", "bb"])
    assert [request.version for request in router.scored] == ["", "v1"]
