"""Pieces of code that run for their caller, in the real sandbox."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from plexsvc.reward.programs.base import RefusedError, Scored, StageRun
from plexsvc.reward.programs.registry import PROGRAMS
from plexsvc.reward.programs.snippets import MAX_RESULT_BYTES, RESULT
from plexsvc.reward.sandbox.base import Sandbox
from tests.rigs.sandbox_process import sandbox_process

pytestmark = pytest.mark.process
CPP = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; }"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_process() as found:
        yield found


def run(sandbox: Sandbox, text: str, language: str, **asked: object) -> dict[str, Any]:
    (stage,) = PROGRAMS["run_code"].stages
    reference = {"language": language, **asked}
    found = stage.run(
        StageRun(text=text, reference=reference, limits=stage.limits, sandbox=sandbox)
    )
    assert isinstance(found, Scored)
    return {**json.loads(found.files[RESULT]), "score": found.score}


@pytest.mark.parametrize(
    ("language", "code", "stdin", "printed"),
    [
        ("python", "import numpy; print(int(input()) * 2)", "4", "8\n"),
        ("cpp", CPP, "4", "8\n"),
        ("bash", "read n; echo $((2 * n))", "4", "8\n"),
        ("pytest", "def test_it(): assert 1", "", "1 passed"),
    ],
)
def test_code_of_each_language_runs(
    language: str, code: str, stdin: str, printed: str, sandbox: Sandbox
) -> None:
    found = run(sandbox, code, language, runs=[{"stdin": stdin}])
    assert found["score"] == 1
    assert printed in found["runs"][0]["stdout"]
    assert (found["runs"][0]["status"], found["runs"][0]["return_code"]) == ("Finished", 0)
    assert (found["compile"] is None) == (language != "cpp")


def test_it_compiles_once_and_each_run_is_judged(sandbox: Sandbox) -> None:
    runs = [{"stdin": "1", "stdout": "2 "}, {"stdin": "2", "stdout": "5"}, {"stdin": "x"}]
    found = run(sandbox, f"So:\n```cpp\n{CPP}\n```", "cpp", runs=runs, extract=True)
    assert [one["passed"] for one in found["runs"]] == [True, False, True]
    assert found["score"] == pytest.approx(2 / 3)
    assert found["code"] == f"{CPP}\n"


def test_what_goes_wrong_is_told(sandbox: Sandbox) -> None:
    failed = run(sandbox, "int main() { return x; }", "cpp")
    assert (failed["score"], failed["runs"], failed["compile"]["status"]) == (0, [], "Finished")
    assert "error" in failed["compile"]["stderr"]
    late = run(sandbox, "while True: pass", "python", run_timeout=0.5)
    assert late["runs"][0]["status"] == "TimeLimitExceeded"
    assert late["runs"][0]["return_code"] is None
    wrong = run(sandbox, "exit(3)", "python")
    assert (wrong["runs"][0]["return_code"], wrong["score"]) == (3, 0)
    loud = run(sandbox, "while True: print(1)", "python")
    assert (loud["runs"][0]["status"], loud["score"]) == ("Error", 0)


def test_files_go_in_and_out(sandbox: Sandbox) -> None:
    data = base64.b64encode(b"\0\1").decode()
    code = "open('out/x', 'wb').write(open('in', 'rb').read() * 2)"
    asked: dict[str, Any] = {"files": {"in": data, "out/y": ""}, "fetch_files": ["./out/x", "no"]}
    found = run(sandbox, code, "python", **asked)
    assert {k: base64.b64decode(v) for k, v in found["files"].items()} == {"./out/x": b"\0\1\0\1"}


@pytest.mark.parametrize(
    ("language", "asked", "reason"),
    [
        ("lean", {}, "language: 'lean' is not run here; python"),
        ("python", {"run_timeout": 1e9}, "run_timeout: it is"),
        ("python", {"run_timeout": 0}, "run_timeout: it is"),
        ("python", {"run_timeout": -1}, "run_timeout: it is"),
        ("python", {"memory_limit_MB": 1 << 20}, "memory_limit_MB: it is"),
        ("python", {"compile_timeout": "1"}, "compile_timeout: it is"),
        ("python", {"runs": []}, "runs: they are"),
        ("python", {"runs": ["x"]}, "runs: they are"),
        ("python", {"files": []}, "files: they are"),
        ("python", {"files": {"a": "%"}}, "is not base64"),
        ("python", {"files": {"../a": ""}}, "leaves the directory"),
    ],
)
def test_what_makes_no_sense_is_refused(
    language: str, asked: dict[str, Any], reason: str, sandbox: Sandbox
) -> None:
    with pytest.raises(RefusedError, match=reason):
        run(sandbox, "", language, **asked)


def test_more_than_a_message_holds_is_refused(sandbox: Sandbox) -> None:
    code = f"open('x', 'wb').write(bytes({MAX_RESULT_BYTES}))"
    with pytest.raises(RefusedError, match="at most"):
        run(sandbox, code, "python", fetch_files=["x"])
