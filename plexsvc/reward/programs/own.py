"""Programs of a tenant's own: what they are made of, and how a stage runs.

A stage is a line for `sh` or a Python file with `score(sample)`. It runs in a sandbox, in a fresh
directory: the program's files, `sample.json`, and in `input/` what the stage before left in its
`output/`. So nothing that an earlier stage leaves can take the place of the program's files or of
the sample. The last line that a stage prints is its verdict if it is a JSON object with `score`.
What an untrusted stage prints is none: the next stage finds it in `input/stdout`.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from plexsvc.reward.programs import calling
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
from plexsvc.reward.sandbox.base import Ran, StageLimits

SAMPLE: Final = "sample.json"
CALLER: Final = ".calling.py"
INPUT: Final = "input"
OUTPUT: Final = "output"
TAKEN: Final = frozenset({SAMPLE, CALLER, INPUT, OUTPUT})
"""Names at the top of a stage's directory that no file of a program may have."""
_SCRIPT: Final = Path(calling.__file__).read_bytes()


class OwnStage(msgspec.Struct, frozen=True):
    """One stage as it is kept; its fields are those of the wire's `ProgramStage`."""

    name: str
    resource: str
    count: int
    memory_bytes: int
    timeout_us: int
    command: str
    python: str
    is_untrusted: bool


class Definition(msgspec.Struct, frozen=True):
    """A program as it is kept and sent to workers."""

    name: str
    stages: tuple[OwnStage, ...]
    files: dict[str, bytes]
    timeout_score: float


def encode(definition: Definition) -> bytes:
    """Return a definition as it is kept and sent."""
    return msgspec.msgpack.encode(definition)


def program_of(encoded: bytes) -> Program:
    """Return the program of an encoded definition. Its version is the hash of its contents."""
    definition = msgspec.msgpack.decode(encoded, type=Definition)
    return Program(
        name=definition.name,
        text="your own",
        stages=tuple(
            ProgramStage(
                name=stage.name,
                run=partial(_run, definition, stage),
                limits=StageLimits(
                    wall_us=stage.timeout_us,
                    memory_bytes=stage.memory_bytes,
                    cpus=stage.count if stage.resource == "cpu" else 1,
                    gpus=stage.count if stage.resource == "gpu" else 0,
                ),
                is_sandboxed=True,
                resource=stage.resource,
            )
            for stage in definition.stages
        ),
        settings=None,
        timeout_score=definition.timeout_score,
        definition=encoded,
        version=hashlib.sha256(encoded).hexdigest()[:32],
    )


def _run(definition: Definition, stage: OwnStage, work: StageRun) -> Outcome:
    """Run one stage on one sample.

    Raises:
        RefusedError: for a score that is none.
        RuntimeError: when the program failed by itself.
    """
    sample = {"text": work.text, "reference": work.reference, "settings": dict(work.settings)}
    files = {f"{INPUT}/{path}": data for path, data in work.files.items()}
    files |= {**definition.files, SAMPLE: json.dumps(sample).encode()}
    command = stage.command
    if stage.python:
        files[CALLER] = _SCRIPT
        command = shlex.join([sys.executable, "-I", "-B", CALLER, stage.python])
    ran = work.sandbox.run(
        ("/bin/sh", "-c", f"mkdir -p {INPUT} {OUTPUT}\n{command}"),
        files=files,
        stdin=files[SAMPLE],
        limits=work.limits,
        keeps_files=stage is not definition.stages[-1],
    )
    printed = ran.stdout + ran.stderr
    if ran.hit:
        reason = "" if ran.hit == "wall" else f"stage {stage.name} exceeded its limit of {ran.hit}"
        return TimedOut(output=printed, detail=reason)
    left = {
        path.removeprefix(f"{OUTPUT}/"): data
        for path, data in ran.files.items()
        if path.startswith(f"{OUTPUT}/")
    }
    if stage.is_untrusted:
        return Passed(files=left | _told(ran), output=printed)
    if ran.exit_code:
        last = ran.stderr.strip().rpartition("\n")[2] or "it printed no reason"
        raise RuntimeError(f"stage {stage.name} ended with exit code {ran.exit_code}: {last}")
    verdict = _verdict(ran.stdout)
    if verdict is not None:
        score = verdict["score"]
        if isinstance(score, bool):
            score = float(score)
        if not isinstance(score, int | float):
            raise RefusedError(f"score: stage {stage.name} gave {score!r}, which is no number")
        if not math.isfinite(score):
            raise RefusedError(f"score: stage {stage.name} gave {score}; a score is finite")
        return Scored(score=float(score), output=printed, detail=str(verdict.get("detail", "")))
    if stage is definition.stages[-1]:
        raise RuntimeError(
            f'stage {stage.name} gave no verdict; its last line must be {{"score": NUMBER}}'
        )
    return Passed(files=left, output=printed)


def _told(ran: Ran) -> dict[str, bytes]:
    """Return what an untrusted stage did, as files that it cannot have written itself."""
    return {
        "stdout": ran.stdout.encode(),
        "stderr": ran.stderr.encode(),
        "exit_code": str(ran.exit_code).encode(),
    }


def _verdict(printed: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(printed.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):  # it is no JSON, or nested without end
        return None
    return found if isinstance(found, dict) and "score" in found else None
