"""Documents name what is there, files and functions of the four lives; examples are true."""

from __future__ import annotations

import ast
import doctest
import importlib
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FUNCTION = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
LIVES = ("An operation", "A training batch", "A generate", "A weight version")
FILE = re.compile(r"`((?:plexsvc|client|tests|examples|benchmarks|docs|proto)/[\w./]*\w)`")


EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT / at).with_suffix("").parts)
    for at, package in ((".", "plexsvc"), ("client", "plexclient"))
    for path in (ROOT / at / package).rglob("*.py")
    if ">>> " in path.read_text()
)
"""Modules with examples in their docstrings."""


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_examples_of_a_module_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0


def path_of(name: str) -> Path:
    """Return the file of a story: below plexsvc, or the client's own."""
    return ROOT / ("client" if name.startswith("plexclient/") else "plexsvc") / name


def names_in(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, kinds)}


def functions_named() -> list[tuple[str, str]]:
    found = [FUNCTION.findall(page.read_text()) for page in PAGES]
    return sorted({pair for pairs in found for pair in pairs})


def test_the_lives_name_functions() -> None:
    assert len(functions_named()) > 50


@pytest.mark.parametrize(("file", "name"), functions_named())
def test_a_function_of_a_life_exists(file: str, name: str) -> None:
    assert set(name.split(".")) <= names_in(path_of(file))


def life(title: str) -> str:
    text = (ROOT / "docs/architecture.md").read_text()
    return text.partition(f"### {title}\n")[2].partition("\n### ")[0]


def source_of(file: str, name: str) -> str:
    """Return the text of the functions of a file that have a name."""
    text, last = path_of(file).read_text(), name.rpartition(".")[2]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, kinds) and n.name == last]
    return "\n".join(str(ast.get_source_segment(text, node)) for node in found)


def calls_named() -> list[tuple[str, str, str]]:
    """Return the calls that arrows of a life show: file and name of who calls, and whom."""
    found = set()
    for line in "\n".join(map(life, LIVES)).replace("\n   ", " ").splitlines():
        marks = list(FUNCTION.finditer(line))
        for one, next_ in itertools.pairwise(marks):
            if "→" in line[one.end() : next_.start()]:
                found.add((one.group(1), one.group(2), next_.group(2)))
    return sorted(found)


def handed_through(title: str) -> set[str]:
    """Return the functions that hand the work on; one in parentheses is only asked."""
    text = life(title).partition("\n## ")[0]
    return {match.group() for match in FUNCTION.finditer(text) if text[match.start() - 1] != "("}


@pytest.mark.parametrize("title", ["A generate", "A weight version"])
def test_a_life_names_as_many_functions_as_the_page_says(title: str) -> None:
    text = " ".join((ROOT / "docs/architecture.md").read_text().split())
    found = re.search(rf"{title.lower()}(?: names)? (\d+)", text, re.IGNORECASE)
    assert found is not None
    assert len(handed_through(title)) == int(found.group(1)) <= 40


def test_the_life_of_an_operation_names_no_more_functions_than_it_says() -> None:
    assert len(set(FUNCTION.findall(life("An operation")))) == 39
    assert len(calls_named()) > 60


@pytest.mark.parametrize(("file", "name", "called"), calls_named())
def test_an_arrow_of_a_life_is_a_call(file: str, name: str, called: str) -> None:
    assert re.search(rf"\b{called.rpartition('.')[2]}\b", source_of(file, name)), (file, name)


def test_the_recording_is_small_and_shows_commands_to_the_last() -> None:
    recording = ROOT / "docs" / "recording.svg"
    assert recording.stat().st_size < 64 << 10
    lines = [node.text or "" for node in ET.parse(recording).iter() if node.tag.endswith("}text")]
    assert lines[0].startswith("$ plexctl ")
    assert "$ plexctl down" in lines[:-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = FILE.findall(page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
