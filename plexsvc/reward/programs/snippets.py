"""Program that runs a piece of code for its caller and tells what it did, run by run.

The reference says what to run: `{"language", "runs": [{"stdin", "stdout"}], "extract", "files",
"fetch_files", "compile_timeout", "run_timeout", "memory_limit_MB"}`, all but the first optional.
The score is the share of runs that ended well and, where `stdout` is given, printed it. The file
`result.json` has the rest.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from plexsvc.reward.programs.base import (
    Outcome,
    Program,
    ProgramStage,
    RefusedError,
    Scored,
    StageRun,
)
from plexsvc.reward.programs.code import MAX_TESTS, code_block, prints
from plexsvc.reward.sandbox.base import Ran, StageLimits

RESULT: Final = "result.json"
MAX_SECONDS: Final = 60
MAX_MEMORY_MIB: Final = 1024
MAX_RESULT_BYTES: Final = 4 << 20
_LIMITS: Final = StageLimits(wall_us=300_000_000, memory_bytes=MAX_MEMORY_MIB << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """How a language is run: the name of its file, and what compiles it."""

    file: str
    run: tuple[str, ...]
    fences: str
    compile: tuple[str, ...] = ()


LANGUAGES: Final[Mapping[str, _Language]] = {
    "python": _Language(file="main.py", run=(sys.executable, "-B", "main.py"), fences="python|py"),
    "pytest": _Language(
        file="test_main.py",
        run=(sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_main.py"),
        fences="python|py",
    ),
    "bash": _Language(file="main.sh", run=("/bin/bash", "main.sh"), fences="bash|sh"),
    "cpp": _Language(
        file="main.cpp",
        run=("./main",),
        fences=r"cpp|c\+\+|cc",
        compile=("/usr/bin/g++", "-O2", "-std=c++20", "-pipe", "-o", "main", "main.cpp"),
    ),
}


class _CheckedReference:
    """What a reference asks for, checked.

    Raises:
        RefusedError: naming the field.
    """

    def __init__(self, work: StageRun) -> None:
        found = work.reference
        if not isinstance(found, Mapping):
            raise RefusedError("run_code: the reference must be an object with a language")
        language = found.get("language")
        if language not in LANGUAGES:
            known = ", ".join(LANGUAGES)
            raise RefusedError(f"language: {str(language)[:40]!r} is not run here; {known} are")
        self.language = LANGUAGES[str(language)]
        code = code_block(work.text, self.language.fences) if found.get("extract") else work.text
        self.code = code
        self.runs = _runs(found.get("runs", [{}]))
        self.files = {
            **_files({} if found.get("files") is None else found["files"]),
            self.language.file: code.encode(),
        }
        self.fetch = [str(path) for path in found.get("fetch_files") or []]
        memory = _number(found, "memory_limit_MB", most=MAX_MEMORY_MIB, default=512)
        limits = replace(work.limits, memory_bytes=int(memory) << 20)
        self.compiling = _for(limits, _number(found, "compile_timeout", most=MAX_SECONDS))
        self.running = _for(limits, _number(found, "run_timeout", most=MAX_SECONDS))


def _run_code(work: StageRun) -> Outcome:
    asked = _CheckedReference(work)
    result: dict[str, Any] = {"code": asked.code, "compile": None, "runs": [], "files": {}}
    files = asked.files
    if asked.language.compile:
        ran = work.sandbox.run(
            asked.language.compile, files=files, limits=asked.compiling, keeps_files=True
        )
        result["compile"] = _told(ran)
        files = {**files, **ran.files}
        if ran.hit or ran.exit_code:
            return _scored(result, share=0.0)
    left_us, passed = work.limits.wall_us, 0
    for run in asked.runs:
        ran = work.sandbox.run(
            asked.language.run,
            files=files,
            stdin=str(run.get("stdin") or "").encode(),
            limits=replace(asked.running, wall_us=max(1, min(asked.running.wall_us, left_us))),
            keeps_files=bool(asked.fetch),
        )
        left_us -= ran.run_us
        expected = run.get("stdout")
        is_right = not ran.hit and ran.exit_code == 0
        is_right = is_right and (expected is None or prints(expected)(ran.stdout))
        passed += is_right
        result["runs"].append({**_told(ran), "passed": is_right})
        for path in asked.fetch:
            if path.removeprefix("./") in ran.files:
                data = ran.files[path.removeprefix("./")]
                result["files"][path] = base64.b64encode(data).decode()
    return _scored(result, share=passed / len(asked.runs))


def _scored(result: Mapping[str, Any], *, share: float) -> Scored:
    encoded = json.dumps(result).encode()
    if len(encoded) > MAX_RESULT_BYTES:
        raise RefusedError(
            f"run_code: outputs and files make {len(encoded)} bytes; at most {MAX_RESULT_BYTES} "
            "are told: fetch less, or run fewer inputs at once"
        )
    return Scored(score=share, files={RESULT: encoded})


def _told(ran: Ran) -> dict[str, Any]:
    status = {"": "Finished", "wall": "TimeLimitExceeded"}.get(ran.hit, "Error")
    return {
        "status": status,
        "execution_time": ran.run_us / 1e6,
        "return_code": None if ran.hit == "wall" else ran.exit_code,
        "stdout": ran.stdout,
        "stderr": ran.stderr + (f"\nexceeded its limit of {ran.hit}" if ran.hit else ""),
    }


def _runs(found: Any) -> Sequence[Mapping[str, Any]]:
    is_list = isinstance(found, list) and all(isinstance(run, Mapping) for run in found)
    if not is_list or not 1 <= len(found) <= MAX_TESTS:
        raise RefusedError(f"runs: they are 1 to {MAX_TESTS} objects with stdin and stdout")
    return tuple(found)


def _files(found: object) -> dict[str, bytes]:
    if not isinstance(found, Mapping):
        raise RefusedError("files: they are an object from path to contents in base64")
    files = {}
    for path, text in found.items():
        if str(path).startswith("/") or ".." in str(path).split("/") or not path:
            raise RefusedError(f"files: {path!r} leaves the directory of the code")
        try:
            files[str(path)] = base64.b64decode(str(text or ""), validate=True)
        except (binascii.Error, ValueError) as error:
            raise RefusedError(f"files: {path!r} is not base64: {error}") from error
    return files


def _number(found: Mapping[str, Any], field: str, *, most: float, default: float = 10) -> float:
    value = found.get(field)
    if value is None or (field == "memory_limit_MB" and value == -1):  # no limit, to other services
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise RefusedError(f"{field}: it is {value!r}; it must be above 0 and at most {most:g}")
    return float(value)


def _for(limits: StageLimits, seconds: float) -> StageLimits:
    return replace(limits, wall_us=int(seconds * 1e6))


PROGRAMS: Final = (
    Program(
        name="run_code",
        text="the share of runs of a piece of code that end well",
        stages=(ProgramStage(name="run", run=_run_code, limits=_LIMITS, is_sandboxed=True),),
        settings={},
    ),
)
