"""Script that runs an assertion about a sample, whose process is at the other end of two pipes.

Its directory holds `told.json`: the assertion, and what the sample imports. It leaves `verdict`
there if the assertion holds. It imports nothing of the package, because it is copied.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from plexsvc.reward.programs import grader_line, talking
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import grader_line
    import talking

KNOWN: Final = {"np": "numpy", "pd": "pandas", "pytest": "pytest", "numpy": "numpy"}
"""Names of packages that assertions take for granted."""
HELPERS: Final = {
    **dict.fromkeys(("approx", "raises"), "pytest"),
    **dict.fromkeys(("allclose", "array_equal"), "numpy"),
    "isclose": "math",
    **dict.fromkeys(("assert_allclose", "assert_almost_equal", "assert_equal"), "numpy.testing"),
    **dict.fromkeys(("assert_array_almost_equal", "assert_array_equal"), "numpy.testing"),
}
"""Functions that compare, which assertions take for granted beside what they ask the sample for."""
_SEES_ALL: Final = {"eval", "exec", "getattr", "globals", "open", "vars", "__import__"}


def open_line() -> grader_line.Grader:
    """Return the line to the sample; what is printed from now on goes to the standard error."""
    line = grader_line.Grader(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return line


def parsed(text: str) -> ast.Module:
    """Return the statements of an assertion: an expression in the end is what must be true.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: if it asserts nothing.
    """
    tree = ast.parse(text.strip())
    if any(isinstance(node, ast.Assert | ast.With) for node in ast.walk(tree)):
        return tree  # or a block that must raise
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        raise ValueError("it asserts nothing")  # noqa: TRY004 - of the text, not of a type
    if isinstance(last.value, ast.Call) and _is_assertion(last.value.func):
        return tree
    tree.body[-1] = ast.copy_location(ast.Assert(test=last.value), last)
    return ast.fix_missing_locations(tree)


def _is_assertion(function: ast.expr) -> bool:
    """Return whether a call raises by itself, as those of `numpy.testing` do."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return str(name).startswith("assert")


def names_asked(tree: ast.AST) -> set[str]:
    """Return the names that a test asks the sample for, if it defines them.

    They are what the test does not bind itself, and neither Python nor a module has. Where there is
    none, it is the one function of Python's that is called: `sum(2, 3) == 5` means the sample's.

    Raises:
        ValueError: if the test asks nothing of the sample.
    """
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            own |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
    loaded = [node for node in names if node.id not in own]
    asked = {
        node.id
        for node in loaded
        if not hasattr(builtins, node.id) or node.id in _SEES_ALL
        if id(node) in called or not _is_module(node.id)
    }
    if others := asked - HELPERS.keys():
        return others
    of_python = {node.id for node in loaded if id(node) in called and hasattr(builtins, node.id)}
    if not asked and len(of_python) != 1:
        raise ValueError("it asks nothing of the sample")
    return asked or of_python


def _is_module(name: str) -> bool:
    return name in sys.stdlib_module_names or name in KNOWN


class Scope(dict[str, Any]):
    """The names of an assertion; those of the sample that stand for plain data are asked anew."""

    def __init__(self, line: grader_line.Grader, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self.asked_anew = {
            name for name, value in names.items() if value is None or type(value) in PLAIN
        }
        self._line = line

    def __getitem__(self, name: str) -> Any:
        if name in self.asked_anew:
            return self._line.name(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: object) -> None:
        self.asked_anew.discard(name)
        super().__setitem__(name, value)


class _Both:
    """Local names of the outermost statements: what they assign is global to their functions."""

    def __init__(self, everywhere: dict[str, Any], scope: Scope) -> None:
        self._everywhere, self._scope = everywhere, scope

    def __getitem__(self, name: str) -> Any:
        return self._scope[name]

    def __setitem__(self, name: str, value: object) -> None:
        self._everywhere[name] = self._scope[name] = value

    def __delitem__(self, name: str) -> None:
        del self._everywhere[name], self._scope[name]


PLAIN: Final = (int, float, str, bool, bytes, tuple)


def names_of(
    tree: ast.Module, line: grader_line.Grader, imports: Mapping[str, list[str]]
) -> Iterator[tuple[str, Any]]:
    """Yield what an assertion names that is not its own: modules are of this process.

    So is what the sample itself only imported. A name of a module that is called, such as
    `select(...)`, is the sample's.
    """
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    asked = names_asked(tree)
    for name in asked:
        if hasattr(builtins, name) and name not in _SEES_ALL:
            yield name, line.name(name)
    seen: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or hasattr(builtins, node.id) or node.id in seen:
            continue
        found: Any = None
        if node.id in imports:
            found = _imported(*imports[node.id])
        elif node.id in HELPERS and node.id not in asked:
            seen.add(node.id)
            yield node.id, getattr(importlib.import_module(HELPERS[node.id]), node.id)
            continue
        if found is None and _is_module(node.id) and id(node) not in called:
            with contextlib.suppress(ImportError):
                found = importlib.import_module(KNOWN.get(node.id, node.id))
        if found is None:
            with contextlib.suppress(AttributeError):  # else the assertion's own
                found = line.name(node.id)
        if found is not None:
            seen.add(node.id)
            yield node.id, found


_NOT_IMPORTED: Final = {
    *("__main__", "asserting", "grader_lends", "grader_line", "remote", "remote_copies", "talking"),
    *("test", "unittest"),
}
"""Modules of the grader's own, and those of objects that equal everything."""


def _imported(module: str, *name: str) -> Any:
    """Return what an import of the sample stands for here; None for what is not here."""
    if module.partition(".")[0] in _NOT_IMPORTED:
        return None
    try:
        found = importlib.import_module(module)
        return getattr(found, name[0]) if name else found
    except (ImportError, AttributeError):
        return None


def main() -> None:
    """Leave the verdict if the assertion holds."""
    line = open_line()
    told = json.loads(pathlib.Path("told.json").read_text())
    tree = parsed(told["assertion"])
    line.load("solution.py", "solution", None)
    names = dict(names_of(tree, line, told["imports"]))
    scope: dict[str, Any] = {"__name__": "assertion", **names}
    code = compile(tree, "assertion", "exec", dont_inherit=True)
    both: Any = _Both(scope, Scope(line, names))
    try:
        exec(code, scope, both)
    except talking.LeftError as left:
        sys.exit(str(left))
    pathlib.Path("verdict").write_text("1 1")


if __name__ == "__main__":
    main()
