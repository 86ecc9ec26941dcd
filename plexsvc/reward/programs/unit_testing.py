"""Script that runs pytest on a tree in which one module is a sample's: `unit_testing.py PATH`.

The sample's module is loaded in a child apart (`asserting.py`); what the tests import of it stands
for what is there. So neither pytest nor the verdict is within reach of the sample. Standard input
has a word, which is printed before the verdict: the tests that passed, and all. It imports nothing
of this package, because it is copied.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from plexsvc.reward.programs import asserting
else:
    import asserting  # which lies beside it

_STDERR: Final = 2
_OPTIONS: Final = ("-q", "--no-header", "-p", "no:cacheprovider", "--color=no")
_NOT_STARRED: Final = ("test", "Test", "pytest", "_")


class FarModules(MetaPathFinder, Loader):
    """Has the module of one file be that of the child, by whatever name it is imported."""

    def __init__(self, path: Path, line: asserting.Line) -> None:
        self._path = path
        self._line = line

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return where a module is, if it is the sample's."""
        found = PathFinder.find_spec(name, path, target)
        is_far = found is not None and found.origin and Path(found.origin).resolve() == self._path
        return ModuleSpec(name, self, origin=str(self._path)) if is_far else None

    def exec_module(self, module: ModuleType) -> None:
        """Have the names of a module be asked for when they are used."""
        names = self._line.ask("names")
        starred = [one for one in names if not one.startswith(_NOT_STARRED)]
        module.__dict__["__all__"] = [one for one in starred if not hasattr(builtins, one)]
        module.__dict__["__getattr__"] = self._attribute

    def _attribute(self, name: str) -> Any:  # noqa: ANN401
        try:
            return self._line.ask("name", name)
        except NameError as error:
            raise AttributeError(str(error)) from None


class Counts:
    """Plugin of pytest that counts what passed."""

    def __init__(self) -> None:
        self.passed = 0
        self.skipped = 0
        self.broken = 0
        """Files that could not be collected."""

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401
        """Count a test: what fails while it is set up or taken down has not passed."""
        self.passed += report.when == "call" and report.passed
        self.passed -= report.when == "teardown" and report.failed
        self.skipped += report.skipped

    def pytest_collectreport(self, report: Any) -> None:  # noqa: ANN401
        """Count a file that is broken."""
        self.broken += report.failed

    def pytest_sessionfinish(self, session: Any) -> None:  # noqa: ANN401
        """Count all that there were, those among them that never ran."""
        self.total = session.testscollected - self.skipped + self.broken

    total = 0


def load(path: Path) -> dict[str, Any]:
    """Return the names of the sample's module, which may be one of a package."""
    top, name = path.parent, path.stem
    while (top / "__init__.py").exists():
        name, top = f"{top.name}.{name}", top.parent
    sys.path.insert(0, str(top))
    return vars(importlib.import_module(name))


def main() -> None:
    """Print the word and the verdict."""
    sys.dont_write_bytecode = True
    sys.path[0] = str(Path.cwd())
    path = Path(sys.argv[1]).resolve()
    line = asserting.start_solution(lambda: load(path))
    own = os.fdopen(os.dup(1), "w")
    os.dup2(_STDERR, 1)
    word, counts = sys.stdin.readline().strip(), Counts()
    sys.meta_path.insert(0, FarModules(path, line))
    pytest = importlib.import_module("pytest")
    pytest.main(list(_OPTIONS), plugins=[counts])
    own.write(f"{word} {json.dumps([max(0, counts.passed), counts.total])}\n")
    for stream in (own, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # whatever of the tests would go on


if __name__ == "__main__":
    main()
