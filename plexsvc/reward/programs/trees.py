"""Trees of files that the tests of a sample come in: what each side gets, and what is refused.

Tests run in a process beside the sample's, so those are refused that would read the sample's text,
types or functions there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from plexsvc.reward.programs.base import RefusedError, StageRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The files of unit tests, and where the sample is among them."""

    path: str
    module: str
    """The sample's name as a module: with its packages, as far as their `__init__.py` reach."""
    files: Mapping[str, bytes]
    """For the tests."""
    given: Mapping[str, bytes]
    """For the sample: of the package that it is in, what no test is, nor imported by one, and what
    the reference lists as `given`."""

    @classmethod
    def of(cls, work: StageRun) -> Tree:
        """Return the tree of a reference.

        Raises:
            RefusedError: naming the part that makes no sense.
        """
        tree = work.reference
        if not isinstance(tree, Mapping) or not isinstance(tree.get("files"), Mapping):
            raise RefusedError(
                'unit_tests: the reference must be {"files": {path: text, ...}, "path": where the '
                "sample goes}"
            )
        path = str(tree.get("path", "solution.py"))
        files = {str(one): str(text) for one, text in tree["files"].items()}
        if any(one.startswith("/") or ".." in one.split("/") for one in (path, *files)):
            raise RefusedError("unit_tests: paths are relative and do not leave their directory")
        if not path.endswith(".py") or is_collected(path):
            raise RefusedError(
                f"unit_tests: {path} would be run as a test, or is no Python file; a sample cannot "
                "judge itself"
            )
        files.pop(path, None)
        _refuse_what_runs_the_file(files, path)
        asked = tree.get("given", [])
        if not isinstance(asked, list) or any(one not in files for one in map(str, asked)):
            raise RefusedError("unit_tests: given lists paths of files of the tree")
        given = {*asked, *_package_of(path, files, asked)}
        return cls(
            path=path,
            module=_module_of(path, files),
            files={one: text.encode(errors="surrogateescape") for one, text in files.items()},
            given={one: files[one].encode(errors="surrogateescape") for one in sorted(given)},
        )


READING: Final = {
    *("getsource", "getsourcelines", "getsourcefile", "get_type_hints", "getmembers", "isabstract"),
    "getattr_static",
    *("isfunction", "iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction"),
    *("doctest", "runpy", "weakref", "multiprocessing", "ProcessPoolExecutor"),
}
"""What tests cannot ask of a sample that is not in their process, nor do with it."""
READ_OF_IT: Final = {"__file__", "__module__", "__qualname__", "__wrapped__"}
"""Attributes of Python's that what stands for the sample does not have."""


def is_collected(path: str) -> bool:
    """Return whether pytest takes a file for tests or for their configuration."""
    name = PurePosixPath(path).name
    return bool(re.fullmatch(r"test_.*\.py|.*_test\.py|conftest\.py", name))


def _module_of(path: str, files: Mapping[str, str]) -> str:
    place = PurePosixPath(path)
    names, folder = [place.stem], place.parent
    while str(folder) != "." and str(folder / "__init__.py") in files:
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def _package_of(path: str, files: Mapping[str, str], given: list[str]) -> Iterator[str]:
    """Yield the other modules of the sample's package, as far as they are nothing of the tests.

    A test is, what it imports, what that imports, and so are files outside the package.
    """
    depth = _module_of(path, files).count(".")
    if not depth:
        return
    top = PurePosixPath(path).parents[depth - 1]
    inside = {
        one
        for one in files
        if PurePosixPath(one).is_relative_to(top) and one.endswith(".py") and not is_collected(one)
        if not {"test", "tests"} & {*PurePosixPath(one).parts}
    }
    todo, seen = {*files} - inside, set[str]()
    while todo:  # each is of the tests
        seen |= todo
        imported = {word for one in todo - {*given} for word in imported_by(_nodes(files[one]))}
        todo = {one for one in inside - seen if PurePosixPath(one).stem in imported}
    yield from (one for one in inside if one not in seen or PurePosixPath(one).stem == "__init__")


def _nodes(text: str) -> list[ast.AST]:
    """Return what is in a file of Python; nothing of any other."""
    try:
        return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []


def imported_by(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the last parts of the modules and names that a file imports."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (name.rpartition(".")[2] for name in names)


def _refuse_what_runs_the_file(files: Mapping[str, str], path: str) -> None:
    """Refuse tests that name the sample's file: they would run it themselves, and it is not there.

    Raises:
        RefusedError: naming the test's file.
    """
    name = PurePosixPath(path).name
    for one, text in files.items():
        try:
            nodes = list(ast.walk(ast.parse(text)) if is_collected(one) else ())
        except (SyntaxError, ValueError) as error:
            raise RefusedError(f"unit_tests: {one} is no Python: {error}") from None
        texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
        words = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        words |= {node.id for node in nodes if isinstance(node, ast.Name)} | {*imported_by(nodes)}
        refuse_reading(f"unit_tests: {one}", nodes, words)
        is_run = "-m" in texts and PurePosixPath(path).stem in texts
        if is_run or any(isinstance(value, str) and value.endswith(name) for value in texts):
            raise RefusedError(
                f"unit_tests: {one} names the file {name}, which is not beside the tests: import "
                "the sample, or judge a program by code_python with stdin and stdout"
            )


def refuse_reading(what: str, nodes: list[ast.AST], words: set[str]) -> None:
    """Refuse tests that ask of a sample what only its own process has.

    Raises:
        RefusedError: naming it.
    """
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & READ_OF_IT
    own = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    for node in nodes:
        match node:
            case (
                ast.Attribute(attr="__dict__", value=ast.Name(id=name) | ast.Attribute(attr=name))
                | ast.Call(
                    func=ast.Name(id="vars"), args=[ast.Name(id=name) | ast.Attribute(attr=name)]
                )
            ) if name[:1].isupper() and not name[1:].isupper() and name not in own:
                found.add(f"{name}.__dict__")
            case _:
                pass
    if reading := sorted((READING & words) | found):
        raise RefusedError(
            f"{what} uses {reading[0]}, which needs the sample's text, types or functions in its "
            "own process; the sample runs elsewhere: test what it returns"
        )
