"""Checks of the programs that tenants add: what is refused, with the field and the reason."""

from __future__ import annotations

import ast
import math
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, NoReturn

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import PlexError, bad_request
from plexsvc.reward.programs.own import TAKEN, Definition, OwnStage

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RESOURCES: Final = ("cpu", "gpu")
MAX_STAGES: Final = 16
MAX_FILES: Final = 1024
MAX_PATH_CHARS: Final = 512
MAX_COUNT: Final = 1024
MIN_TIMEOUT_US: Final = 10_000
MAX_TIMEOUT_US: Final = 3_600_000_000
MIN_MEMORY_BYTES: Final = 16 << 20


def from_wire(request: pb.AddProgramRequest, *, max_memory_bytes: int) -> Definition:
    """Return the definition that a request asks for.

    Raises:
        PlexError: `bad_request`, naming the field and what it may hold.
    """
    if not NAME.fullmatch(request.name):
        _refuse(
            "name",
            f"{request.name[:80]!r} is no name of a program; it is 1 to 64 of a-z A-Z 0-9 . _ - "
            "and begins with a letter or digit",
        )
    files = dict(sorted(request.files.items()))
    if len(files) > MAX_FILES:
        _refuse("files", f"{len(files)} files; a program has at most {MAX_FILES}")
    for path in files:
        _check_path(path)
    if not 1 <= len(request.stages) <= MAX_STAGES:
        _refuse("stages", f"{len(request.stages)} stages; a program has 1 to {MAX_STAGES}")
    stages = tuple(_stage(stage, files, max_memory_bytes) for stage in request.stages)
    names = [stage.name for stage in stages]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        _refuse("stages", f"two stages are called {twice!r}; each has a name of its own")
    if stages[-1].is_untrusted:
        _refuse(
            "stages",
            f"stage {names[-1]!r} is the last one and untrusted, so nobody gives a verdict; add a "
            "stage that judges what it left in input/",
        )
    score = request.timeout_score if request.HasField("timeout_score") else -1.0
    if not math.isfinite(score):
        _refuse("timeout_score", f"it is {score}; it must be finite")
    return Definition(request.name, stages, files, score)


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    is_inside = parts and str(PurePosixPath(path)) == path and not path.startswith("/")
    if not is_inside or ".." in parts or len(path) > MAX_PATH_CHARS or not path.isprintable():
        _refuse(
            "files",
            f"{path[:80]!r} is no path of a program's file; it is relative, does not leave its "
            f"directory and has at most {MAX_PATH_CHARS} characters",
        )
    if parts[0] in TAKEN:
        _refuse("files", f"{path!r}: {parts[0]} is made for each run; give the file another name")


def _stage(stage: pb.ProgramStage, files: Mapping[str, bytes], max_memory_bytes: int) -> OwnStage:
    if not NAME.fullmatch(stage.name):
        _refuse("stages.name", f"{stage.name[:80]!r} is no name of a stage, such as `compile`")
    where = f"stage {stage.name!r}"
    if stage.resource not in RESOURCES:
        _refuse(
            "stages.resource",
            f"{where} asks for {stage.resource[:80]!r}; workers hold {', '.join(RESOURCES)}",
        )
    for field, unit, low, high in (
        ("count", "", 1, MAX_COUNT),
        ("timeout_us", " us", MIN_TIMEOUT_US, MAX_TIMEOUT_US),
        ("memory_bytes", " bytes", MIN_MEMORY_BYTES, max_memory_bytes),
    ):
        found = getattr(stage, field)
        if not low <= found <= high:
            what = f"{field} of {found}" if found else f"no {field}"
            _refuse(
                f"stages.{field}", f"{where} has {what}; it needs a limit of {low} to {high}{unit}"
            )
    if bool(stage.command.strip()) == bool(stage.python):
        _refuse("stages.command", f"{where} needs either a command or a Python file to run")
    _check_is_there(stage, where, files)
    if stage.python:
        check_source(f"{where}: {stage.python}", files[stage.python])
    return OwnStage(**{field: getattr(stage, field) for field in OwnStage.__struct_fields__})


def _check_is_there(stage: pb.ProgramStage, where: str, files: Mapping[str, bytes]) -> None:
    """Refuse a stage that runs a file of its directory which the program does not have."""
    wanted = stage.python
    if not wanted:
        try:
            first = shlex.split(stage.command, comments=True)[0]
        except (ValueError, IndexError) as error:
            _refuse("stages.command", f"{where}: {stage.command[:80]!r} is no command: {error}")
        wanted = first.removeprefix("./") if first.startswith("./") else ""
    if wanted and wanted not in files:
        known = ", ".join(list(files)[:8]) or "none"
        _refuse(
            "files", f"{where} runs {wanted[:80]!r}, which is not there; the files are: {known}"
        )


def _refuse(field: str, why: str) -> NoReturn:
    raise bad_request(f"{field}: {why}", field=field)


MAX_SOURCE_BYTES: Final = 64 << 10
"""Of a file with `score`; parsing one holds everybody up, and other files may be larger."""

SCORE: Final = "score"
FIELD: Final = "stages.python"


def check_source(what: str, source: bytes) -> None:
    """Refuse a Python file that does not compile or binds no `score`. `O(its size)`.

    Raises:
        PlexError: `bad_request` with the line and the reason.

    >>> check_source("score.py", b"def score(sample): return 1.0")
    """
    if len(source) > MAX_SOURCE_BYTES:
        raise _refusal(
            f"{what} has {len(source)} bytes; a file with `score` may have {MAX_SOURCE_BYTES}: put "
            "the rest into files that it imports"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except SyntaxError as error:
        raise _refusal(f"{what} line {error.lineno or 1}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _refusal(
            f"{what} cannot be compiled: {str(error) or type(error).__name__}"
        ) from error
    if not any(name in {SCORE, "*"} for name in _names(tree.body)):
        raise _refusal(f"{what} binds no `score`; define `def score(sample)` in it")


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind in a module; `*` for whatever another one has."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
                continue
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case _:
                pass
        todo.extend(ast.iter_child_nodes(node))


def _refusal(why: str) -> PlexError:
    return bad_request(f"{FIELD}: {why}", field=FIELD)
