"""Script that runs pytest on a tree in which one module is a sample's, which runs elsewhere.

What the tests import of the sample's module stands for what is in its process (`remote.py`). Its
directory holds the tree and `told.json`: the path of the sample, and its name as a module. It
leaves `verdict`: the tests that passed, and all. How many there are is found before the sample
runs: the tests are collected with nothing in its place. It imports nothing of the package, because
it is copied.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import importlib
import inspect
import json
import os
import pathlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

if TYPE_CHECKING:
    from plexsvc.reward.programs import asserting, grader_line, remote, talking
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import asserting
    import grader_line
    import remote
    import talking

    del sys.path[0]

_TEMPORARY: Final = "/tmp/tests"
_TOLD: Final = ("__version__", "__author__")
_NOT_STARRED: Final = ("test", "Test", "pytest", "_")


class FarModule(ModuleType):
    """A module whose names are asked for when they are used."""

    def __getattr__(self, name: str) -> Any:
        is_own = name.startswith("__") and name not in _TOLD
        if is_own or "_find" not in self.__dict__:
            raise AttributeError(name)
        return self.__dict__["_find"](name)

    def __setattr__(self, name: str, value: object) -> None:
        line = self.__dict__.get("_line")
        if line is None or name.startswith("__"):
            super().__setattr__(name, value)
        else:
            line.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__["_line"].do("delattr", self, name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__dict__.get("_names", ())})


class FarModules(MetaPathFinder, Loader):
    """Has the module of one file be far away, by whatever name it is imported."""

    def __init__(self, path: pathlib.Path, fill: Callable[[FarModule], None]) -> None:
        self._path = path
        self._fill = fill

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return where a module is, if it is the sample's."""
        found = PathFinder.find_spec(name, path, target)
        is_far = found and found.origin and pathlib.Path(found.origin).resolve() == self._path
        return ModuleSpec(name, self, origin=str(self._path)) if is_far else None

    def create_module(self, spec: ModuleSpec) -> FarModule:
        """Return a module without names."""
        return FarModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Have the names of a module be found when they are used."""
        assert isinstance(module, FarModule)
        self._fill(module)


def stand_in(module: FarModule) -> None:
    """Fill a module with names that stand for anything."""
    module.__dict__["__all__"] = []
    module.__dict__["_find"] = lambda name: mock.MagicMock(name=name)


def sample(
    line: grader_line.Grader, told: dict[str, str], others: set[str]
) -> Callable[[FarModule], None]:
    """Return what fills a module with the names of the sample.

    Of these a star imports none that the tests have from elsewhere.
    """

    def fill(module: FarModule) -> None:
        before = line.told
        names = line.load(told["path"], told["name"], module)
        module.__dict__.update(_find=line.name, _line=line, _names=frozenset(names))
        module.__dict__["__doc__"] = line.name("__doc__")
        starred = line.name("__all__") if "__all__" in names else names
        module.__dict__["__all__"] = [
            one
            for one in map(str, starred)
            if not one.startswith(_NOT_STARRED)
            if not hasattr(builtins, one) and one not in others
        ]
        line.told = before

    return fill


class Collected:
    """Plugin of pytest that lists the tests of each file that are to pass."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        self.off: set[str] = set()
        self.broken: set[str] = set()
        """Files that cannot be collected without the sample."""

    def pytest_collectreport(self, report: Any) -> None:
        """Count the tests of a file that cannot be collected."""
        if report.failed and report.nodeid.endswith(".py"):
            self.broken.add(report.nodeid)

    def pytest_collection_finish(self, session: Any) -> None:
        """Take the others, but for those that their author skips, or expects to fail."""
        self.off = {one.nodeid for one in session.items if _is_off(one)}
        self.names = Counter(
            _function(one.nodeid) for one in session.items if one.nodeid not in self.off
        )


def _function(name: str) -> str:
    """Return the name of a test without its parameters, which may be the sample's."""
    return name.partition("[")[0]


def _is_off(item: Any) -> bool:
    """Return whether a test is skipped, or to fail, whatever the sample says."""
    marks = [
        mark
        for mark in item.iter_markers()
        if mark.name in {"skip", "xfail", "skipif"}
        and not str(mark.kwargs.get("reason")).startswith("got empty parameter set")
    ]
    off = any(
        one is True or (mark.name == "xfail" and isinstance(one, str))
        for mark in marks
        for one in (mark.args or [mark.kwargs.get("condition", True)])
    )
    kinds = [getattr(item, "obj", None), getattr(item, "cls", None)]
    attributes = ("__unittest_skip__", "__unittest_expecting_failure__")
    return off or any(getattr(one, name, None) is True for one in kinds for name in attributes)


def _functions(path: str) -> list[str]:
    """Return the names of the tests in the text of a file."""
    try:
        nodes = list(ast.walk(ast.parse(pathlib.Path(path).read_text())))
    except (OSError, SyntaxError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [n.name for n in nodes if isinstance(n, kinds) and n.name.startswith("test")]


class Counts:
    """Plugin of pytest that counts what passed."""

    def __init__(self, line: grader_line.Grader) -> None:
        self._line = line
        self._asked = 0
        self._before_call = 0
        self._told_in_calls = 0
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        """Tests of which a part has not passed: the set-up, a subtest, the end."""
        self.seen: set[str] = set()
        self.left_out: set[str] = set()
        """Tests that their author skips, or expects to fail."""

    def pytest_runtest_logstart(self) -> None:
        """Note what was asked before a test."""
        self._asked = self._line.asked

    def pytest_runtest_call(self) -> None:
        """Note what the sample said before the function of a test runs."""
        self._before_call = self._line.told

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test: what fails while it is set up or taken down has not passed.

        One that is skipped counts as failed if the sample may be why: it was asked meanwhile, or
        had said something to a module or a fixture before.
        """
        name = report.nodeid
        self.seen.add(name)
        if report.when == "call":
            self._told_in_calls += self._line.told - self._before_call
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.passed.add(name)
        is_skipped = report.skipped and "got empty parameter set" not in str(report.longrepr)
        is_own = self._line.asked == self._asked and self._line.told == self._told_in_calls
        if report.failed or (is_skipped and not is_own):
            self.failed.add(name)
        if is_own and (is_skipped or hasattr(report, "wasxfail")):
            self.left_out.add(name)

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        """Run a test that is a coroutine function."""
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{one: pyfuncitem.funcargs[one] for one in names}))
        return True

    pytest_pyfunc_call.tryfirst = True  # type: ignore[attr-defined]


def run_pytest(
    path: pathlib.Path, fill: Callable[[FarModule], None], *more: str, plugin: Any
) -> None:
    """Run pytest on the tree."""
    sys.meta_path.insert(0, FarModules(path, fill))
    here = str(pathlib.Path.cwd())
    sys.path.insert(0, here)
    pytest = importlib.import_module("pytest")
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--disable-plugin-autoload",  # what the machine has decides no score, and takes a second
        "--color=no",
        "--continue-on-collection-errors",
        *more,
    ]
    pytest.main([*options, "--rootdir", here, "--confcutdir", here, here], plugins=[plugin])


def spelt(name: str) -> tuple[set[str], set[str]]:
    """Return the names in the texts of the tests: what may be the sample's, and other imports."""
    mine: set[str] = set()
    others: set[str] = set()
    for place in pathlib.Path().rglob("*.py"):
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(place.read_bytes())):
                if isinstance(node, ast.Name):
                    mine.add(node.id)
                elif isinstance(node, ast.Attribute):
                    mine.add(node.attr)
                elif isinstance(node, ast.ImportFrom | ast.Import):
                    module = getattr(node, "module", None) or ""
                    is_mine = module.rpartition(".")[2] == name.rpartition(".")[2]
                    names = {one.asname or one.name.partition(".")[0] for one in node.names}
                    names |= starred(module) if "*" in names and not is_mine else set()
                    names |= {one.name for one in node.names if is_mine}
                    (mine if is_mine else others).update(names)
    return mine - others, others


def starred(module: str) -> set[str]:
    """Return the names that a star imports of a module: of the tree, or of any other."""
    last = module.rpartition(".")[2] or "__init__"
    here = pathlib.Path()
    places = [*here.rglob(f"{last}.py"), *here.rglob(f"{last}/__init__.py")]
    found: set[str] = set()
    for place in places:
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(place.read_bytes())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.add(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
    if not places:
        with contextlib.suppress(ImportError):
            found.update(dir(importlib.import_module(module)))
    return found


def collected(path: pathlib.Path) -> tuple[Counter[str], set[str], set[str]]:
    """Return what a process without the sample finds.

    It is the tests that are to pass, those that are off, and the files that it cannot collect.
    """
    ours, theirs = os.pipe()
    if not os.fork():
        plugin = Collected()
        run_pytest(path, stand_in, "--collect-only", plugin=plugin)
        with os.fdopen(theirs, "w") as file:
            json.dump([plugin.names, sorted(plugin.off), sorted(plugin.broken)], file)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as file:
        names, off, broken = json.loads(file.read() or "[{}, [], []]")
    os.wait()
    return Counter(names), set(off), set(broken)


def verdict(names: Counter[str], off: set[str], broken: set[str], counts: Counts) -> list[int]:
    """Return how many tests passed, and how many there are: as many as without the sample.

    Where it is the sample that decides how often a test runs, all of these runs count as the ones
    that there were. A test that is only seen with the sample counts once, if its file has its name.
    """
    runs: dict[str, set[str]] = {}
    for run in counts.seen - off:
        runs.setdefault(_function(run), set()).add(run)
    passed, of_file = 0, Counter[str]()
    for name in {**names, **runs}:
        file, _, last = name.rpartition("::")
        file = file.partition("::")[0]
        if name not in names and last not in _functions(file):
            continue
        seen = runs.get(name, set())
        left_out = counts.left_out - counts.failed
        number = max(0, max(1, names[name]) - len(seen & left_out))
        seen = seen - left_out
        passed += number * len(seen & counts.passed - counts.failed) // max(1, number, len(seen))
        of_file[file] += number
    written = Counter({file: max(1, len(_functions(file))) for file in broken})
    return [passed, (written | of_file).total()]  # of each file the larger number


class Following:
    """Has what tests replace in Python's own modules be replaced for the sample, too."""

    def __init__(self, line: grader_line.Grader) -> None:
        self._line = line
        self._before: dict[tuple[str, ...], object] = {}

    def install(self) -> None:
        """Be what `monkeypatch` and `mock.patch` set and delete attributes by."""
        for module in (mock, importlib.import_module("_pytest.monkeypatch")):
            vars(module).update(setattr=self.set, delattr=self.delete)
        names = [*_SEEDED, *(["numpy.random"] if "numpy" in sys.modules else [])]
        for name in names:
            module = importlib.import_module(name)
            module.seed = self._seeding(name, module.seed)  # type: ignore[attr-defined]

    def set(self, owner: object, name: str, value: object) -> None:
        """Set an attribute."""
        path = _path_of(owner, name)
        if path is not None:
            before = self._before.setdefault(path, vars(owner).get(name))
            self._line.do("patch", list(path), *(() if value is before else (value,)))
        setattr(owner, name, value)

    def delete(self, owner: object, name: str) -> None:
        """Delete an attribute."""
        path = _path_of(owner, name)
        if path is not None and path in self._before:
            self._line.do("patch", list(path))
        delattr(owner, name)

    def _seeding(self, module: str, seed: Callable[..., Any]) -> Callable[..., Any]:
        def seeding(number: Any = None, *more: Any) -> None:
            self._line.do("seed", module, number)
            seed(number, *more)

        return seeding


_SEEDED: Final = ("random",)
_NOT_FOLLOWED: Final = {
    *(("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr"), ("builtins", "input")),
}
"""What the sample asks the grader for anyway."""


def _path_of(owner: Any, name: str) -> tuple[str, ...] | None:
    """Return the module, class and name of what is Python's own; None for all else."""
    if isinstance(owner, remote.RemoteType | FarModule):
        return None
    if isinstance(owner, ModuleType):
        path: tuple[str, ...] = (owner.__name__, name)
    elif isinstance(owner, type):
        path = (owner.__module__, *owner.__qualname__.split("."), name)
    else:
        return None
    is_known = path[0].partition(".")[0] in sys.stdlib_module_names
    return path if is_known and path not in _NOT_FOLLOWED else None


def main() -> None:
    """Leave the verdict."""
    sys.dont_write_bytecode = True
    importlib.import_module("pytest")  # once, before a fork collects
    line = asserting.open_line()
    told = json.loads(pathlib.Path("told.json").read_text())
    path = pathlib.Path(told["path"]).resolve()
    before = collected(path)
    line.files.shared = _TEMPORARY
    tempfile.tempdir = f"{_TEMPORARY}/other"
    pathlib.Path(tempfile.tempdir).mkdir(parents=True)
    Following(line).install()
    line.spelt, others = spelt(told["name"])
    counts = Counts(line)
    try:
        run_pytest(path, sample(line, told, others), f"--basetemp={_TEMPORARY}/own", plugin=counts)
    except talking.LeftError as left:
        sys.stderr.write(f"{left}\n")
    passed, total = verdict(*before, counts)
    pathlib.Path("verdict").write_text(f"{passed} {total}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # whatever of the tests would go on


if __name__ == "__main__":
    main()
