"""Programs that run what a model wrote, in a sandbox, and compare outside of it.

A test is `{"stdin": ..., "stdout": ...}` (white space at line ends does not matter), `{"call":
"f(2)", "equals": 4}` (JSON values) or `{"assert": "f(2) == 4"}`. What a test expects never reaches
the process of the sample. An assertion runs in a sandbox of its own beside it (`asserting.py`), and
so do pytest's tests (`unit_testing.py`): they ask the sample for names and calls
(`grader_line.py`).
"""

from __future__ import annotations

import ast
import importlib
import json
import marshal
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, Final

from plexsvc.reward.programs import asserting
from plexsvc.reward.programs.base import (
    Outcome,
    Passed,
    Program,
    ProgramStage,
    RefusedError,
    Scored,
    StageRun,
    TimedOut,
)
from plexsvc.reward.programs.trees import Tree, imported_by, refuse_reading
from plexsvc.reward.sandbox.base import (
    ENDED,
    PYC_HEADER_BYTES,
    PYTHON,
    PeerCommand,
    Ran,
    StageLimits,
)

MAX_TESTS: Final = 256
GRADER_BYTES: Final = 320 << 20
"""Of the memory that a stage holds, what the grader's process has; the sample has the rest."""
_RUN: Final = StageLimits(wall_us=30_000_000, memory_bytes=832 << 20)
_COMPILE: Final = StageLimits(wall_us=60_000_000, memory_bytes=2 << 30)
_SUITE: Final = StageLimits(wall_us=120_000_000, memory_bytes=1 << 30)
MIB: Final = 1 << 20

_CALL: Final = """
import json, os, sys, types
from collections import UserString, abc
own = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.set_int_max_str_digits(0)
module = sys.modules["solution"] = types.ModuleType("solution")
try:
    exec(compile(open("solution.py", "rb").read(), "solution.py", "exec"), module.__dict__)
except SystemExit:
    pass
if module.__dict__.keys().isdisjoint(sys.argv[2].split()):
    raise NameError(sys.argv[2])
def plain(value):
    for name in ("tolist", "item"):
        if type(value).__module__ == "numpy" and hasattr(value, name):
            return getattr(value, name)()
    if isinstance(value, abc.Mapping):
        return dict(value)
    if isinstance(value, abc.Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return str(value) if isinstance(value, UserString) else list(value)
    if isinstance(value, abc.Set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")
own.write(json.dumps(eval(sys.argv[1], module.__dict__), default=plain))
own.flush()
"""
_HERE: Final = Path(__file__).parent
_HARNESS: Final = ".harness"


def _scripts(*names: str) -> dict[str, bytes]:
    """Return scripts of this folder as files of a sandbox, compiled: every test starts them."""
    return {f"{_HARNESS}/{name}.pyc": _compiled(name) for name in names}


def _compiled(name: str) -> bytes:
    source, place = (_HERE / f"{name}.py").read_bytes(), f"{_HARNESS}/{name}.py"
    code = compile(source, place, "exec", dont_inherit=True)
    return MAGIC_NUMBER + bytes(PYC_HEADER_BYTES - len(MAGIC_NUMBER)) + marshal.dumps(code)


_AGENT: Final = _scripts("answering", "plain_data", "stand_ins", "talking")
_ASSERT: Final = _scripts(
    "asserting", "grader_line", "remote", "remote_copies", "grader_lends", "talking"
)
_UNIT_TESTS: Final = _ASSERT | _scripts("unit_testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One test: what runs, and whether it ended right."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    accepts: Callable[[Ran], bool]
    stdin: str = ""
    sample: tuple[tuple[str, ...], Mapping[str, bytes]] | None = None
    """What runs beside it: command and files of the sample's own sandbox."""


def code_block(text: str, language: str, *, defines: bool = False) -> str:
    r"""Return the code that a text means: its last fenced block of a language, else of none.

    With `defines` the last one of these that defines something, where any does: a block that only
    shows how to call it often follows. Without any block the text itself is the code.

    >>> code_block("first\n```python\nx = 1\n```\nthat is all", "python")
    'x = 1\n'
    """
    lines = text.replace("\r\n", "\n").split("\n")
    blocks: list[tuple[str, str]] = []
    fence, tag, inside = "", "", list[str]()
    for line in [*lines, ""]:
        found = re.match(r"[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$", line)
        if not fence and found:
            fence, tag, inside = found[1], found[2].lower(), []
        elif fence and found and found[1].startswith(fence) and not found[2]:
            blocks.append((tag, textwrap.dedent("\n".join(inside)) + "\n"))
            fence = ""
        elif fence:
            inside.append(line)
    if fence and "".join(inside).strip():  # it was never closed
        blocks.append((tag, textwrap.dedent("\n".join(inside))))
    mine = [code for tag, code in blocks if re.fullmatch(language, tag)]
    mine = mine or [code for tag, code in blocks if not tag]
    if defines:
        mine = [
            code for code in mine if re.search(r"^(async def|def|class) ", code, re.MULTILINE)
        ] or mine
    return mine[-1] if mine else text.replace("\r\n", "\n")


def _python(work: StageRun) -> Outcome:
    tests = _tests(work)
    has_names = any("stdout" not in test for test in tests)
    source = code_block(work.text, PYTHON_TAGS, defines=has_names)
    return _test(work, [_python_case(test, source, work) for test in tests])


STARRED: Final = (
    *("math", "collections", "itertools", "functools", "operator", "typing", "decimal", "re"),
    *("fractions", "statistics", "string", "datetime", "heapq", "bisect", "random", "copy"),
)
"""Modules of which programs import everything."""
NEEDS_PACKAGES: Final = re.compile(
    rf"\b({'|'.join((asserting.HELPERS | asserting.KNOWN).keys() - {'isclose'})})\b"
)
"""Assertions that the grader runs with packages, whether the sample has some or not."""
PYTHON_TAGS: Final = "python3?|py3?"


def _python_case(test: Mapping[str, Any], source: str, work: StageRun) -> _Case:
    python = (sys.executable, "-I") if work.settings.get("packages", False) else PYTHON
    files = {"solution.py": source.encode(errors="surrogateescape")}
    if "stdout" in test:
        is_right = prints(test["stdout"])
        return _Case(
            argv=(*python, "solution.py"),
            files=files,
            stdin=_stdin(test),
            accepts=lambda ran: is_right(ran.stdout),
        )
    if "call" in test and "equals" in test:
        return _Case(
            argv=(*python, "harness.py", *_call(str(test["call"]))),
            files={**files, "harness.py": _CALL.encode()},
            accepts=lambda ran: _returns(test["equals"], ran.stdout),
        )
    if "assert" in test:
        try:
            parsed = asserting.parsed(str(test["assert"]))
            asserting.names_asked(parsed)
            nodes = list(ast.walk(parsed))
        except (SyntaxError, ValueError) as error:
            raise RefusedError(f"code_python: the assertion {test['assert']!r}: {error}") from None
        words = {*_of_modules(nodes), *imported_by(nodes)}
        refuse_reading(f"code_python: {test['assert']!r}", nodes, words)
        grader = (sys.executable, "-I") if NEEDS_PACKAGES.search(str(test["assert"])) else python
        told = {"assertion": str(test["assert"]), "imports": imports_of(source)}
        return _Case(
            argv=(*grader, f"{_HARNESS}/asserting.pyc"),
            files={**_ASSERT, "told.json": json.dumps(told).encode()},
            sample=((*python, f"{_HARNESS}/answering.pyc"), {**files, **_AGENT}),
            accepts=lambda ran: ran.files.get("verdict") == b"1 1",
        )
    raise RefusedError(
        f"code_python: a test has stdout, call and equals, or assert, not {', '.join(test)}"
    )


def _call(text: str) -> tuple[str, str]:
    """Return an expression, and the names in it of which the sample must define one."""
    try:
        names = asserting.names_asked(ast.parse(text.strip(), mode="eval"))
        compile(text.strip(), "call", "eval")
    except (SyntaxError, ValueError) as error:
        raise RefusedError(f"code_python: the call {text!r}: {error}") from None
    return text.strip(), " ".join(sorted(names))


def _of_modules(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names of Python's modules that are used as their attributes."""
    for node in nodes:
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id=module)):
                if module in sys.stdlib_module_names:
                    yield name
            case _:
                pass


def imports_of(source: str) -> dict[str, list[str]]:
    """Return the names that a program only imports: the module of each, and the name there.

    A program that imports something by another name means it to be its own.

    >>> imports_of("import numpy as np; from math import gcd, lcm as f")
    {'np': ['numpy'], 'gcd': ['math', 'gcd']}
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                if not one.asname:
                    found[top] = [top]
                elif one.asname == top or one.asname not in sys.stdlib_module_names:
                    found[one.asname] = [one.name]  # numpy as math is not the assertion's math
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module in STARRED
            and node.names[0].name == "*"
        ):
            module = importlib.import_module(node.module)
            found |= {one: [node.module, one] for one in dir(module) if not one.startswith("_")}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            same = [one.name for one in node.names if one.asname in {None, one.name}]
            found |= {one: [node.module, one] for one in same}
    for own in ast.walk(tree):  # what it defines itself is its own
        if isinstance(own, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.pop(own.name, None)
        elif isinstance(own, ast.Name) and isinstance(own.ctx, ast.Store):
            found.pop(own.id, None)
    return found


def _compile(work: StageRun) -> Outcome:
    argv = ["/usr/bin/g++", "-O2", "-std=c++20", "-pipe", "-o", "program", "main.cpp"]
    source = code_block(work.text, r"cpp|c\+\+|cc|cxx|c").encode(errors="surrogateescape")
    ran = work.sandbox.run(argv, files={"main.cpp": source}, limits=work.limits, keeps_files=True)
    if ran.hit == "wall":
        return TimedOut(output=ran.stderr)
    if ran.exit_code != 0 or "program" not in ran.files:
        return Scored(score=0.0, output=ran.stderr, detail="it does not compile")
    return Passed(files={"program": ran.files["program"]}, output=ran.stderr)


def _run_cpp(work: StageRun) -> Outcome:
    tests = _tests(work)
    if any("stdout" not in test for test in tests):
        raise RefusedError("code_cpp: a test has stdin and stdout")
    return _test(work, [_cpp_case(test, work.files) for test in tests])


def _cpp_case(test: Mapping[str, Any], files: Mapping[str, bytes]) -> _Case:
    is_right = prints(test["stdout"])
    return _Case(
        argv=("./program",),
        files=files,
        stdin=_stdin(test),
        accepts=lambda ran: is_right(ran.stdout),
    )


def _tests(work: StageRun) -> list[Mapping[str, Any]]:
    found = work.reference
    if isinstance(found, Mapping):
        found = found.get("tests", [found])
    is_list = isinstance(found, list) and all(isinstance(test, Mapping) for test in found)
    if not is_list or not 1 <= len(found) <= MAX_TESTS:
        raise RefusedError(f"the reference must be a list of 1 to {MAX_TESTS} tests")
    for number, test in enumerate(found):
        for field in test.keys() & {"stdin", "stdout"}:
            value = test[field]
            is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
            if not is_text and (value is not None or field == "stdout"):
                raise RefusedError(f"test {number}: {field} must be a text, not {value!r:.80}")
    return list(found)


def _stdin(test: Mapping[str, Any]) -> str:
    return "" if test.get("stdin") is None else str(test["stdin"])


def _test(work: StageRun, cases: Sequence[_Case]) -> Outcome:
    """Run the cases one after the other, each in a sandbox of its own, in the time of the stage."""
    left_us, passed, output, detail = _time_us(work), 0, "", ""
    for number, case in enumerate(cases):
        limits = replace(work.limits, wall_us=left_us)
        ran = _run(work, case, limits)
        left_us -= ran.run_us
        if ran.hit == "wall" or left_us <= 0:
            seconds = f"{_time_us(work) / 1e6:g} s"
            text = f"the tests of a sample took longer than they may together, {seconds}"
            return TimedOut(output=output + _output(ran), detail=text)
        is_right = not ran.hit and ran.exit_code == 0 and case.accepts(ran)
        passed += is_right
        if not is_right and not detail:
            detail, output = f"test {number} failed: {_why(ran)}", _output(ran)
    share = passed / len(cases)
    score = share if work.settings.get("partial", True) else float(share == 1)
    return Scored(score=score, output=output, detail=f"{passed} of {len(cases)} passed. {detail}")


def _time_us(work: StageRun) -> int:
    """Return the time that the tests may take together: the stage's, or less if that is asked."""
    seconds = work.settings.get("seconds", work.limits.wall_us / 1e6)
    if not 0 < seconds <= work.limits.wall_us / 1e6:
        raise RefusedError(
            f"seconds = {seconds}: it must be above 0 and at most {work.limits.wall_us / 1e6:g}"
        )
    return int(seconds * 1e6)


def _run(work: StageRun, case: _Case, limits: StageLimits) -> Ran:
    """Run a case, and beside it the sample, each in a sandbox of its own."""
    if case.sample is None:
        return work.sandbox.run(
            case.argv, files=case.files, stdin=case.stdin.encode(), limits=limits
        )
    argv, files = case.sample
    left = replace(limits, memory_bytes=max(MIB, limits.memory_bytes - GRADER_BYTES))
    return work.sandbox.run(
        case.argv,
        files=case.files,
        limits=replace(limits, memory_bytes=GRADER_BYTES),
        keeps_files=True,
        beside=PeerCommand(argv=argv, files=files, limits=left),
    )


def _output(ran: Ran) -> str:
    """Return what a command printed, and the sample beside it."""
    beside = "" if ran.beside is None else ran.beside.stderr
    return beside + ran.stdout + ran.stderr


def _why(ran: Ran) -> str:
    hit = ran.hit or (ran.beside.hit if ran.beside is not None else "")
    if hit not in {"", ENDED}:
        return f"it exceeded its limit of {hit}"
    return f"exit code {ran.exit_code}" if ran.exit_code else "another answer"


def prints(expected: object) -> Callable[[str], bool]:
    """Return whether an output is the expected one; white space at line ends does not matter."""
    return lambda printed: _lines(printed) == _lines(str(expected))


def _lines(text: str) -> list[str]:
    spaces = " \t\r\f\v"  # of ASCII: any other space was printed on purpose
    return [line.rstrip(spaces) for line in text.rstrip(spaces + "\n").split("\n")]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("keys of a dict are one in JSON: 1 and '1'")
    return found


def _returns(expected: object, printed: str) -> bool:
    try:
        return is_same(json.loads(printed, object_pairs_hook=_object), expected)
    except (ValueError, RecursionError):
        return False


def is_same(found: object, expected: object) -> bool:
    """Return whether two JSON values are the same: a truth value is no number.

    >>> is_same([1, 2.0], [1.0, 2]), is_same([True], [1])
    (True, False)
    """
    if isinstance(found, list) and isinstance(expected, list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(is_same(one, two) for one, two in pairs)
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_same(found[key], expected[key]) for key in found
        )
    return found == expected and isinstance(found, bool) == isinstance(expected, bool)


def _unit_tests(work: StageRun) -> Outcome:
    """Score the share of pytest's tests that pass; `reference.files` are the tree."""
    tree = Tree.of(work)
    source = code_block(work.text, PYTHON_TAGS, defines=True).encode(errors="surrogateescape")
    told = json.dumps({"path": tree.path, "name": tree.module}).encode()
    case = _Case(
        argv=(sys.executable, f"{_HARNESS}/unit_testing.pyc"),
        files={**tree.files, tree.path: b"", **_UNIT_TESTS, "told.json": told},
        sample=(
            (sys.executable, f"{_HARNESS}/answering.pyc"),
            {**tree.given, tree.path: source, **_AGENT},
        ),
        accepts=lambda _: True,
    )
    ran = _run(work, case, work.limits)
    if ran.hit == "wall":
        return TimedOut(output=_output(ran))
    if "No module named 'pytest'" in ran.stderr:
        raise RefusedError("unit_tests: pytest is not installed where workers run")
    verdict = ran.files.get("verdict", b"").split()
    if ran.hit or len(verdict) != 2:
        return Scored(score=0.0, output=_output(ran), detail=f"the tests did not end: {_why(ran)}")
    passed, total = map(int, verdict)
    if not total:
        raise RefusedError("unit_tests: pytest finds no test in the tree that is to pass")
    score = passed / total if work.settings.get("partial", True) else float(passed == total)
    missing = re.search(r"No module named '([\w.]+)'", _output(ran))
    hint = (
        f". The sample found no module {missing[1]}; files of the tree that it may import are "
        "listed in the reference as given"
        if missing and score < 1
        else ""
    )
    return Scored(score=score, output=_output(ran), detail=f"{passed} of {total}{hint}")


PROGRAMS: Final = (
    Program(
        name="code_python",
        text="the share of tests that a Python program passes",
        stages=(ProgramStage(name="run", run=_python, limits=_RUN, is_sandboxed=True),),
        settings={"partial": bool, "packages": bool, "seconds": float},
    ),
    Program(
        name="code_cpp",
        text="the share of tests that a C++ program passes",
        stages=(
            ProgramStage(name="compile", run=_compile, limits=_COMPILE, is_sandboxed=True),
            ProgramStage(name="run", run=_run_cpp, limits=_RUN, is_sandboxed=True),
        ),
        settings={"partial": bool, "seconds": float},
    ),
    Program(
        name="unit_tests",
        text="the share of pytest's tests that pass in a tree of files",
        stages=(ProgramStage(name="test", run=_unit_tests, limits=_SUITE, is_sandboxed=True),),
        settings={"partial": bool},
    ),
)
