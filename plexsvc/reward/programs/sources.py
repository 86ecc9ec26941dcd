"""Checks of Python files with `score(sample)`: they are parsed where they are added, never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Final

from plexsvc.errors import PlexError, bad_request

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
