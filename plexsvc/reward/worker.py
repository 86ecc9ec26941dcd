"""Worker of the reward service: a process that runs one stage of one request at a time.

A zygote (`zygote.py`) forks it. It has one thread and no event loop.
"""

from __future__ import annotations

import importlib
import json
import math
import resource
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from plexsvc.errors import PlexError
from plexsvc.reward import messages
from plexsvc.reward.messages import Ready, StageDone, Task, Warm
from plexsvc.reward.programs import own
from plexsvc.reward.programs.base import Passed, RefusedError, Scored, StageRun, TimedOut, cut
from plexsvc.reward.programs.registry import PROGRAMS
from plexsvc.reward.sandbox.base import Sandbox
from plexsvc.reward.sandbox.opening import open_sandbox
from plexsvc.tether import die_before_parent, set_process_name

MAX_MEMORY_BYTES: Final = 4 << 30
"""Address space of a worker: what a model wrote may make a library compute without end. Stages in
a sandbox have limits of their own, which may be higher."""


def serve(line: socket.socket, *, is_sandbox_known: bool) -> None:
    """Serve a proxy until it closes the line."""
    die_before_parent()
    set_process_name("reward-worker")
    sys.set_int_max_str_digits(0)  # numbers may have any length: a stage has a limit of its own
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, resource.RLIM_INFINITY))
    sandbox = open_sandbox(is_known_to_work=is_sandbox_known)
    with line:
        line.sendall(messages.encode(Ready(sandbox.describe())))
        while (body := _read(line)) is not None:
            match messages.decode(body):
                case Warm() as warm:
                    import_all(warm.modules)
                case Task() as task:
                    line.sendall(messages.encode(run(task, sandbox=sandbox)))
                case other:
                    raise AssertionError(other)


def import_all(modules: Iterable[str]) -> None:
    """Import what programs need, as far as it is there: who lacks it says so when it runs."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


def run(task: Task, *, sandbox: Sandbox) -> StageDone:
    """Return how a stage ended; nothing that a program raises gets out."""
    program = own.program_of(task.definition) if task.definition else PROGRAMS[task.program]
    stage = program.stages[task.stage]
    if stage.is_sandboxed and not sandbox.is_available():
        return StageDone("refused", detail=f"{task.program}: {sandbox.describe()}")
    try:
        work = StageRun(
            text=task.text,
            reference=_parsed("reference", task.reference),
            settings=_parsed("settings", task.settings) or {},
            files=task.files,
            limits=stage.limits,
            sandbox=sandbox,
        )
        return _done(stage.run(work))
    except RefusedError as error:
        return StageDone("refused", detail=cut(str(error)))
    except MemoryError:
        return StageDone("timed_out", detail="the program ran out of memory")
    except Exception as error:  # noqa: BLE001 - a program may raise anything
        sys.stderr.write(traceback.format_exc())
        text = error.message if isinstance(error, PlexError) else f"{type(error).__name__}: {error}"
        return StageDone("failed", detail=cut(text))


def _parsed(what: str, text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise RefusedError(f"the {what} cannot be read as JSON: {reason}") from error


def _done(outcome: Scored | Passed | TimedOut) -> StageDone:
    match outcome:
        case Scored(score=score, output=output, detail=detail, files=files):
            if not math.isfinite(score):
                return StageDone("refused", output=cut(output), detail=f"the score is {score}")
            return StageDone("scored", float(score), cut(output), cut(detail), dict(files))
        case Passed(files=files, output=output):
            return StageDone("passed", output=cut(output), files=dict(files))
        case TimedOut(output=output, detail=detail):
            return StageDone("timed_out", output=cut(output), detail=detail)


def _read(line: socket.socket) -> bytes | None:
    """Return the body of the next message; None when the line is closed."""
    head = _read_exactly(line, messages.LENGTH.size)
    return None if head is None else _read_exactly(line, messages.LENGTH.unpack(head)[0])


def _read_exactly(line: socket.socket, nbytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < nbytes:
        part = line.recv(min(nbytes - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
