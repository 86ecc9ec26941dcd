"""The tutorials, as they stand: their commands run in order, and print what the pages say."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.rigs import tinker_sdk

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
START: Final = "README"
MAX_WORDS: Final = 250
FIGURE: Final = re.compile(r"\d+%|\d+\.\d+")
"""What differs from run to run: shares and decimals."""
MARK: Final = "-- next --"
"""What is printed between two blocks of a page."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each fenced block."""
    return FENCE.findall(page.read_text())


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Reader:
    """Somebody who follows the pages in a directory of their own, at ports that are free."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._place = home / "plexsvc"
        self._place.mkdir()
        (self._place / "examples").symlink_to(ROOT / "examples")
        self._ports = dict(zip(("50051", "8080", "8000"), free_ports(3), strict=True))
        environment = os.environ  # noqa: TID251 - of a user's shell
        kept = {name: environment[name] for name in ("LANG", "TMPDIR") if name in environment}
        self._environment = kept | {
            "HOME": str(home),
            "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}",
            "HF_HUB_OFFLINE": "1",
        }

    def follow(self, page: Path) -> str:
        """Do what a page says in one shell; compare what it prints, and return that."""
        commands, expected = [], []
        for language, text in blocks(page):
            for port, free in self._ports.items():
                text = text.replace(port, str(free))  # noqa: PLW2901 - the reader's own
            if language == "sh":
                commands.append(text)
            elif language == "text":
                expected.append((len(commands) - 1, text))
            elif name := re.match(r"# (\S+\.(py|toml))\n", text):
                (self._place / name.group(1)).write_text(text)
        told = self.run(f"echo {MARK}\n".join(commands), with_tinker=page.stem == "tinker")
        said = FIGURE.sub("N", told).split(MARK)
        for number, text in expected:
            missing = [
                line for line in FIGURE.sub("N", text).splitlines() if line not in said[number]
            ]
            assert missing == [], told
        return told

    def run(self, commands: str, *, with_tinker: bool = False) -> str:
        """Return what commands print; what they left running ends."""
        environment = dict(self._environment)
        if with_tinker:
            environment["PATH"] = f"{tinker_sdk.PYTHON.parent}:{environment['PATH']}"
        with (self._place / "told.log").open("w+") as log:
            shell = subprocess.Popen(
                ["bash", "-ec", commands],
                cwd=self._place,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                status = shell.wait(timeout=240)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
            log.seek(0)
            told = log.read()
        assert status == 0, told
        return told


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """A reader who has done what the first page says."""
    home = Path(tempfile.mkdtemp(prefix="plex-tutorials-", dir="/var/tmp"))
    reader = Reader(home)
    try:
        reader.follow(next(page for page in PAGES if page.stem == START))
        yield reader
    finally:
        told = reader.run("plexctl down; plexctl down || true")
        shutil.rmtree(home)
    assert "no cluster runs in" in told, "the first ended it"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != START], ids=lambda p: p.stem
)
def test_the_commands_of_a_tutorial_do_what_it_says(reader: Reader, page: Path) -> None:
    told = reader.follow(page)
    if page.stem == "grpo":
        shares = [int(share) for share in re.findall(r"step +\d+: (\d+)%", told)]
        assert shares[0] < 50, "random weights write few digits"
        assert shares[-1] > 60


def test_a_script_for_trl_learns_and_leaves_a_model(reader: Reader) -> None:
    told = reader.run("plexctl submit --attach examples/trl_digits.py models/tiny digits")
    steps = [ast.literal_eval(line) for line in told.splitlines() if line.startswith("{")]
    assert [step["step"] for step in steps] == list(range(1, 21))
    assert steps[0]["reward"] < 0.5, "random weights write few digits"
    assert steps[-1]["reward"] > 0.8
    assert list(reader.home.rglob("digits/model.safetensors"))


@pytest.mark.parametrize(("example", "most"), [("first_loop", 40), ("tool_loop", 60)])
def test_a_loop_fits_on_a_page(example: str, most: int) -> None:
    assert len((ROOT / "examples" / f"{example}.py").read_text().splitlines()) <= most


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_short_and_shows_what_is_there(page: Path) -> None:
    assert len(prose(page).split()) <= MAX_WORDS
    named = re.findall(r"examples/\w+\.py", page.read_text())
    examples = [(ROOT / name).read_text() for name in named]
    for language, text in blocks(page):
        if language == "python" and not text.startswith("# "):
            assert any(text in example for example in examples), text
    links = re.findall(r"\]\(([\w.]+)\)|`(\.\./[\w./-]+)`", page.read_text())
    assert [
        link for pair in links for link in pair if link and not (page.parent / link).exists()
    ] == []
