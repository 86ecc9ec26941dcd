"""Tests mirror the tree: a unit test lies where its module lies. Names mean one thing in a room."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "tests" / "unit"
ROOMS = ("fakes", "rigs")
PRODUCTS = {"client": ROOT / "client" / "plexclient", "": ROOT / "plexsvc"}
BENCHMARKS = ROOT / "benchmarks"

EXCEPTIONS = {
    "client/test_contract.py": "the client alone: what it imports and shares with the service",
    "client/test_cut_lines.py": "a whole client behind a line that breaks",
    "client/test_public_names.py": "the names that a user imports",
    "demo/test_examples.py": "the programs in examples/",
    "scheduler/core/planning/test_live_planning.py": "the planner as the live core asks it",
    "scheduler/core/test_properties.py": "the whole core under Hypothesis",
    "scheduler/core/test_starvation.py": "the whole core under endless load",
    "scheduler/driver/test_recorded_journals.py": "the whole core on journals of real runs",
    "sim/test_outside.py": "simulated runs under a checker that shares no code with them",
}
"""Unit tests that name no module of their folder, and their subject. The list only shrinks."""


def module_of(test: Path) -> Path:
    """Return the module or package that a unit test is named after."""
    inside = test.relative_to(UNIT)
    root = PRODUCTS[""]
    if inside.parts[0] == "client":
        root, inside = PRODUCTS["client"], inside.relative_to("client")
    if inside.parts[0] == "benchmarks":
        root, inside = BENCHMARKS, inside.relative_to("benchmarks")
    if inside.parts[0] == "wire":
        root = PRODUCTS["client"]
    return root / inside.parent / inside.name.removeprefix("test_")


def unit_tests() -> list[Path]:
    return sorted(UNIT.rglob("test_*.py"))


def is_mirrored(test: Path) -> bool:
    module = module_of(test)
    return module.exists() or module.with_suffix("").is_dir()


@pytest.mark.parametrize("test", unit_tests(), ids=lambda test: str(test.relative_to(UNIT)))
def test_a_unit_test_lies_where_its_module_lies(test: Path) -> None:
    name = str(test.relative_to(UNIT))
    assert is_mirrored(test) or name in EXCEPTIONS, f"no {module_of(test).relative_to(ROOT)}"


def test_no_exception_is_stale() -> None:
    known = {str(test.relative_to(UNIT)): test for test in unit_tests()}
    assert [name for name in EXCEPTIONS if name not in known or is_mirrored(known[name])] == []


def test_fakes_lie_apart_from_rigs() -> None:
    names = {room: [path.name for path in (ROOT / "tests" / room).glob("*.py")] for room in ROOMS}
    assert [name for name in names["fakes"] if not name.startswith("fake_")] == []
    assert [name for name in names["rigs"] if name.startswith("fake_")] == []


def modules() -> list[Path]:
    found = [path for root in PRODUCTS.values() for path in root.rglob("*.py")]
    return sorted(p for p in found if p.name != "__init__.py" and "v1" not in p.parts)


def room_of(module: Path, *, depth: int) -> Path:
    """Return the folder, at most `depth` levels below the repository's, that a module lies in."""
    return Path(*module.relative_to(ROOT).parts[:-1][:depth])


def doubles(names: list[tuple[Path, str, Path]]) -> dict[str, list[str]]:
    """Return the names that stand more than once in a room, of (room, name, where)."""
    found = defaultdict(list)
    for room, name, where in names:
        found[f"{name} in {room}"].append(str(where.relative_to(ROOT)))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_class_name_stands_for_one_thing_in_the_product() -> None:
    names = [
        (ROOT, node.name.lstrip("_"), module)
        for module in modules()
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    assert doubles(names) == {}


def test_a_module_name_stands_for_one_thing_in_a_room() -> None:
    names = [(room_of(module, depth=3), module.stem, module) for module in modules()]
    assert doubles(names) == {}


ACTIONS = ROOT / "plexsvc" / "scheduler" / "core" / "actions.py"
AGAIN = {
    ROOT / "plexsvc" / "scheduler" / "core" / "awaited.py",
    ROOT / "plexsvc" / "scheduler" / "driver" / "replaying.py",
    ROOT / "plexsvc" / "sim" / "books.py",
    ROOT / "plexsvc" / "traces" / "spans.py",
}
"""Of a takeover: what orders everything that is awaited once more, and what notes timers; and
the records of a simulated run and the spans of a journal, which nothing follows from."""
MAX_FILES = 3
"""Files that name an action: the room that orders it, who performs it, and one more."""


def actions() -> list[str]:
    classes = (n for n in ast.parse(ACTIONS.read_text()).body if isinstance(n, ast.ClassDef))
    return [one.name for one in classes if one.bases]


def names_in(module: Path) -> set[str]:
    """Return the names and attributes that a module's code uses."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_an_action_is_named_in_three_files_beside_its_definition() -> None:
    used = {module: names_in(module) for module in modules() if module not in {ACTIONS, *AGAIN}}
    found = {
        action: [str(module.relative_to(ROOT)) for module in used if action in used[module]]
        for action in actions()
    }
    assert len(found) > MAX_FILES
    assert {action: where for action, where in found.items() if len(where) > MAX_FILES} == {}
