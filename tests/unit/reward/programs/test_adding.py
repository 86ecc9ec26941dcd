"""Programs that tenants add: each thing that is wrong is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.reward.programs.adding import MAX_SOURCE_BYTES, MAX_STAGES, check_source, from_wire

MAX_BYTES = 1 << 30


def stage(name: str = "run", **changed: Any) -> pb.ProgramStage:
    given = {
        "name": name,
        "resource": "cpu",
        "count": 1,
        "memory_bytes": 64 << 20,
        "timeout_us": 1_000_000,
        "command": "./run.sh",
    }
    return pb.ProgramStage(**{**given, **changed})


def program(
    *stages: pb.ProgramStage,
    name: str = "own",
    files: dict[str, bytes] | None = None,
    timeout_score: float | None = None,
) -> pb.AddProgramRequest:
    return pb.AddProgramRequest(
        name=name,
        stages=stages,
        files={"run.sh": b""} if files is None else files,
        timeout_score=timeout_score,
    )


def test_a_program_is_taken_as_it_was_given() -> None:
    made = from_wire(program(stage(), timeout_score=0.0), max_memory_bytes=MAX_BYTES)
    assert (made.name, made.timeout_score, made.files) == ("own", 0.0, {"run.sh": b""})
    assert made.stages[0].command == "./run.sh"
    assert from_wire(program(stage()), max_memory_bytes=MAX_BYTES).timeout_score == -1.0


BAD: dict[str, tuple[pb.AddProgramRequest, str, str]] = {
    "no name": (program(stage(), name=""), "name", "no name of a program"),
    "a name that leaves": (program(stage(), name="../x"), "name", "no name"),
    "no stage": (program(), "stages", "0 stages"),
    "many stages": (
        program(*[stage(f"s{i}") for i in range(MAX_STAGES + 1)]),
        "stages",
        "17 stages",
    ),
    "twice the same": (program(stage(), stage()), "stages", "two stages are called 'run'"),
    "no time": (program(stage(timeout_us=0)), "stages.timeout_us", "no timeout_us; it needs a"),
    "too long": (program(stage(timeout_us=10**13)), "stages.timeout_us", "it needs a limit of"),
    "no memory": (program(stage(memory_bytes=0)), "stages.memory_bytes", "has no memory_bytes"),
    "too much": (program(stage(memory_bytes=2 << 30)), "stages.memory_bytes", "to 1073741824"),
    "no count": (program(stage(count=0)), "stages.count", "has no count"),
    "another resource": (program(stage(resource="tpu")), "stages.resource", "'tpu'; workers hold"),
    "no resource": (program(stage(resource="")), "stages.resource", "asks for ''"),
    "no command": (program(stage(command=" ")), "stages.command", "either a command or"),
    "both": (program(stage(python="run.sh")), "stages.command", "either a command or"),
    "no words": (program(stage(command="'")), "stages.command", "is no command"),
    "a file that is not there": (program(stage(), files={}), "files", "'run.sh', which is not"),
    "no such Python file": (
        program(stage(command="", python="a.py")),
        "files",
        "'a.py', which is not there; the files are: run.sh",
    ),
    "a Python file that does not compile": (
        program(stage(command="", python="run.sh"), files={"run.sh": b"def score(:"}),
        "stages.python",
        "stage 'run': run.sh line 1: ",
    ),
    "a Python file without score": (
        program(stage(command="", python="a.py"), files={"a.py": b"def main(): pass"}),
        "stages.python",
        "stage 'run': a.py binds no `score`",
    ),
    "a path outside": (program(stage(), files={"../a": b""}), "files", "no path"),
    "an absolute path": (program(stage(), files={"/a": b""}), "files", "no path"),
    "the sample": (program(stage(), files={"sample.json": b""}), "files", "made for each run"),
    "the input": (program(stage(), files={"input/a": b""}), "files", "made for each run"),
    "untrusted to the end": (program(stage(is_untrusted=True)), "stages", "nobody gives a verdict"),
    "an infinite score": (
        program(stage(), timeout_score=float("inf")),
        "timeout_score",
        "must be finite",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_refused_by_its_field(what: str) -> None:
    request, field, text = BAD[what]
    with pytest.raises(PlexError, match=text) as refused:
        from_wire(request, max_memory_bytes=MAX_BYTES)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert refused.value.facts["field"] == field


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
