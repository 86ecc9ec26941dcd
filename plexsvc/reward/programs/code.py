"""Programs that run what a model wrote, in a sandbox, and compare outside of it.

A test is `{"stdin": ..., "stdout": ...}` (white space at line ends does not matter), `{"call":
"f(2)", "equals": 4}` (JSON values) or `{"assert": "f(2) == 4"}`. What a test expects is never
inside the sandbox in the first two forms. An assertion has to be, in a process beside the code that
it judges (`asserting.py`), and so do pytest's tests (`unit_testing.py`).
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexsvc.reward.programs import asserting
from plexsvc.reward.programs.base import (
    Outcome,
    Passed,
    Program,
    RefusedError,
    Scored,
    Stage,
    TimedOut,
    Work,
)
from plexsvc.reward.sandbox.base import PYTHON, Limits, Ran

MAX_TESTS: Final = 256
_RUN: Final = Limits(wall_us=30_000_000)
_COMPILE: Final = Limits(wall_us=60_000_000, memory_bytes=2 << 30)
_SUITE: Final = Limits(wall_us=120_000_000, memory_bytes=1 << 30)

_CALL: Final = """
import json, os, sys
own = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "solution"}
exec(compile(open("solution.py").read(), "solution.py", "exec"), names)
own.write(json.dumps(eval(sys.argv[1], names)))
own.flush()
"""
_ASSERT: Final = Path(asserting.__file__).read_bytes()
_HARNESS: Final = ".harness"
_HARNESS_FILES: Final = {
    f"{_HARNESS}/asserting.py": _ASSERT,
    f"{_HARNESS}/unit_testing.py": Path(asserting.__file__)
    .with_name("unit_testing.py")
    .read_bytes(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One test: what runs, and whether its output is right."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    stdin: str
    accepts: Callable[[str], bool]


def code_block(text: str, language: str) -> str:
    r"""Return the last fenced block of a language, or of none, else the text itself.

    >>> code_block("first\n```python\nx = 1\n```\nthat is all", "python")
    'x = 1\n'
    """
    blocks = re.findall(rf"```(?:{language})?[ \t]*\n(.*?)```", text, re.DOTALL)
    return str(blocks[-1]) if blocks else text


def _python(work: Work) -> Outcome:
    source = code_block(work.text, "python|py").encode()
    return _test(work, [_python_case(test, source, work) for test in _tests(work)])


def _python_case(test: Mapping[str, Any], source: bytes, work: Work) -> _Case:
    python = (sys.executable, "-I") if work.settings.get("packages", False) else PYTHON
    files = {"solution.py": source}
    if "stdout" in test:
        return _Case(
            argv=(*python, "solution.py"),
            files=files,
            stdin=str(test.get("stdin", "")),
            accepts=prints(test["stdout"]),
        )
    if "call" in test and "equals" in test:
        return _Case(
            argv=(*python, "harness.py", str(test["call"])),
            files={**files, "harness.py": _CALL.encode()},
            stdin="",
            accepts=_returns(test["equals"]),
        )
    if "assert" in test:
        nonce = secrets.token_hex(16)  # whoever leaves before the assertion does not know it
        return _Case(
            argv=(*python, "harness.py"),
            files={**files, "harness.py": _ASSERT},
            stdin=f"{nonce}\n{test['assert']}",
            accepts=lambda printed: printed.strip() == nonce,
        )
    raise RefusedError(
        f"code_python: a test has stdout, call and equals, or assert, not {', '.join(test)}"
    )


def _compile(work: Work) -> Outcome:
    argv = ["/usr/bin/g++", "-O2", "-std=c++20", "-pipe", "-o", "program", "main.cpp"]
    source = code_block(work.text, r"cpp|c\+\+|cc").encode()
    ran = work.sandbox.run(argv, files={"main.cpp": source}, limits=work.limits, keeps_files=True)
    if ran.hit == "wall":
        return TimedOut(output=ran.stderr)
    if ran.exit_code != 0 or "program" not in ran.files:
        return Scored(score=0.0, output=ran.stderr, detail="it does not compile")
    return Passed(files={"program": ran.files["program"]}, output=ran.stderr)


def _run_cpp(work: Work) -> Outcome:
    tests = _tests(work)
    if any("stdout" not in test for test in tests):
        raise RefusedError("code_cpp: a test has stdin and stdout")
    cases = [
        _Case(
            argv=("./program",),
            files=work.files,
            stdin=str(test.get("stdin", "")),
            accepts=prints(test["stdout"]),
        )
        for test in tests
    ]
    return _test(work, cases)


def _tests(work: Work) -> list[Mapping[str, Any]]:
    found = work.reference
    if isinstance(found, Mapping):
        found = found.get("tests", [found])
    is_list = isinstance(found, list) and all(isinstance(test, Mapping) for test in found)
    if not is_list or not 1 <= len(found) <= MAX_TESTS:
        raise RefusedError(f"the reference must be a list of 1 to {MAX_TESTS} tests")
    return list(found)


def _test(work: Work, cases: Sequence[_Case]) -> Outcome:
    """Run the cases one after the other, each in a sandbox of its own, in the time of the stage."""
    left_us, passed, output, detail = _time_us(work), 0, "", ""
    for number, case in enumerate(cases):
        limits = _within(work.limits, left_us)
        ran = work.sandbox.run(
            case.argv, files=case.files, stdin=case.stdin.encode(), limits=limits
        )
        left_us -= ran.run_us
        if ran.hit == "wall" or left_us <= 0:
            return TimedOut(output=output + ran.stdout + ran.stderr)
        is_right = not ran.hit and ran.exit_code == 0 and case.accepts(ran.stdout)
        passed += is_right
        if not is_right and not detail:
            detail, output = f"test {number} failed: {_why(ran)}", ran.stdout + ran.stderr
    share = passed / len(cases)
    score = share if work.settings.get("partial", True) else float(share == 1)
    return Scored(score=score, output=output, detail=f"{passed} of {len(cases)} passed. {detail}")


def _time_us(work: Work) -> int:
    """Return the time that the tests may take together: the stage's, or less if that is asked."""
    seconds = work.settings.get("seconds", work.limits.wall_us / 1e6)
    if not 0 < seconds <= work.limits.wall_us / 1e6:
        raise RefusedError(
            f"seconds = {seconds}: it must be above 0 and at most {work.limits.wall_us / 1e6:g}"
        )
    return int(seconds * 1e6)


def _within(limits: Limits, left_us: int) -> Limits:
    return Limits(
        wall_us=left_us,
        memory_bytes=limits.memory_bytes,
        disk_bytes=limits.disk_bytes,
        output_bytes=limits.output_bytes,
        max_processes=limits.max_processes,
        max_open_files=limits.max_open_files,
    )


def _why(ran: Ran) -> str:
    if ran.hit:
        return f"it exceeded its limit of {ran.hit}"
    return f"exit code {ran.exit_code}" if ran.exit_code else "another answer"


def prints(expected: object) -> Callable[[str], bool]:
    """Return whether an output is the expected one; white space at line ends does not matter."""
    return lambda printed: _lines(printed) == _lines(str(expected))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _returns(expected: object) -> Callable[[str], bool]:
    def accepts(printed: str) -> bool:
        try:
            found = json.loads(printed)
        except ValueError:
            return False
        return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)

    return accepts


def _unit_tests(work: Work) -> Outcome:
    """Score the share of pytest's tests that pass; `reference.files` are the tree."""
    path, files = _tree(work)
    nonce = secrets.token_hex(16)
    argv = (sys.executable, f"{_HARNESS}/unit_testing.py", path)
    ran = work.sandbox.run(
        argv,
        files={**files, **_HARNESS_FILES},
        stdin=f"{nonce}\n".encode(),
        limits=work.limits,
        fixes_files=True,
    )
    if ran.hit == "wall":
        return TimedOut(output=ran.stderr)
    if "No module named 'pytest'" in ran.stderr:
        raise RefusedError("unit_tests: pytest is not installed where workers run")
    word, _, verdict = ran.stdout.partition(" ")
    if ran.hit or word != nonce:
        return Scored(score=0.0, output=ran.stderr, detail=f"the tests did not end: {_why(ran)}")
    passed, total = json.loads(verdict)
    if not total:
        return Scored(score=0.0, output=ran.stderr, detail="no test was run")
    score = passed / total if work.settings.get("partial", True) else float(passed == total)
    return Scored(score=score, output=ran.stderr, detail=f"{passed} of {total}")


def _tree(work: Work) -> tuple[str, dict[str, bytes]]:
    """Return where the sample lies, and all files with it."""
    tree = work.reference
    if not isinstance(tree, Mapping) or not isinstance(tree.get("files"), Mapping):
        raise RefusedError(
            'unit_tests: the reference must be {"files": {path: text, ...}, "path": where the '
            "sample goes}"
        )
    path = str(tree.get("path", "solution.py"))
    files = {str(one): str(text).encode() for one, text in tree["files"].items()}
    files[path] = code_block(work.text, "python|py").encode()
    if any(one.startswith("/") or ".." in one.split("/") for one in files):
        raise RefusedError("unit_tests: paths are relative and do not leave their directory")
    if re.fullmatch(r"test_.*|.*_test\.py|conftest\.py", Path(path).name):
        raise RefusedError(
            f"unit_tests: {path} would be run as a test; a sample cannot judge itself"
        )
    return path, files


PROGRAMS: Final = (
    Program(
        name="code_python",
        text="the share of tests that a Python program passes",
        stages=(Stage(name="run", run=_python, limits=_RUN, is_sandboxed=True),),
        settings={"partial": bool, "packages": bool, "seconds": float},
    ),
    Program(
        name="code_cpp",
        text="the share of tests that a C++ program passes",
        stages=(
            Stage(name="compile", run=_compile, limits=_COMPILE, is_sandboxed=True),
            Stage(name="run", run=_run_cpp, limits=_RUN, is_sandboxed=True),
        ),
        settings={"partial": bool, "seconds": float},
    ),
    Program(
        name="unit_tests",
        text="the share of pytest's tests that pass in a tree of files",
        stages=(Stage(name="test", run=_unit_tests, limits=_SUITE, is_sandboxed=True),),
        settings={"partial": bool},
    ),
)
