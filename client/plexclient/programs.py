"""Reward programs of one's own: their stages and files, as they are sent to the service."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plexclient.checks import of_type, real, text, whole
from plexclient.errors import bad_request
from plexclient.wire.v1 import reward_pb2

MAX_PROGRAM_BYTES: Final = 7 << 20
"""Bytes of a program's files: what one message can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a reward program: a `command` for sh, or a `python` file with `score(sample)`.

    A stage runs in a sandbox with `count` of a `resource`, `memory_bytes` and `timeout_s`. It finds
    the program's files, the sample in `sample.json` (and on stdin), and in `input/` what the stage
    before left in its `output/`. When the last line that it prints is a JSON object with `score`,
    that is the verdict, and no further stage runs. An untrusted stage runs what the model wrote:
    what it prints is no verdict but `input/stdout` of the next stage.
    """

    name: str
    command: str = ""
    python: str = ""
    timeout_s: float
    resource: str = "cpu"
    count: int = 1
    memory_bytes: int = 512 << 20
    is_untrusted: bool = False

    def to_wire(self) -> reward_pb2.ProgramStage:
        """Return the wire form.

        Raises:
            PlexError: `bad_request` for a limit that is none.
        """
        where = f"stage {self.name!r}"
        return reward_pb2.ProgramStage(
            name=self.name,
            command=self.command,
            python=self.python,
            resource=self.resource,
            count=whole(f"{where}: count", self.count, least=1),
            memory_bytes=whole(f"{where}: memory_bytes", self.memory_bytes, most=1 << 50),
            timeout_us=int(real(f"{where}: timeout_s", self.timeout_s, least=0, most=1e6) * 1e6),
            is_untrusted=self.is_untrusted,
        )


def to_wire(
    name: str,
    program: str | Path | Sequence[Stage],
    *,
    files: Sequence[str | Path] | None,
    timeout_s: float,
    timeout_score: float,
) -> reward_pb2.AddProgramRequest:
    """Return the request that registers a program; see `Job.reward`.

    Raises:
        PlexError: `bad_request` for limits that are none and files that cannot be read or are too
            many.
    """
    text("name", name)
    if isinstance(program, str | Path):
        file = Path(program)
        stages: Sequence[Stage] = [Stage(name="score", python=file.name, timeout_s=timeout_s)]
        found = dict(_under(file)) | dict(_given(files or ()))
    else:
        of_type("program", program, Sequence, takes="a Python file's path or a list of plex.Stage")
        for number, stage in enumerate(program):
            of_type(f"program: stage {number}", stage, Stage)
        stages = program
        found = dict(_named(stages) if files is None else _given(files))
    read = {path: _read(place) for path, place in sorted(found.items())}
    nbytes = sum(map(len, read.values()))
    if nbytes > MAX_PROGRAM_BYTES:
        raise bad_request(
            f"program {name!r} has {len(read)} files of {nbytes} bytes; at most "
            f"{MAX_PROGRAM_BYTES} bytes are taken"
        )
    return reward_pb2.AddProgramRequest(
        name=name,
        stages=[stage.to_wire() for stage in stages],
        files=read,
        timeout_score=real("timeout_score", timeout_score),
    )


def _named(stages: Sequence[Stage]) -> Iterator[tuple[str, Path]]:
    """Yield the files that the stages name, by their paths from here."""
    for stage in stages:
        for word in [stage.python, *shlex.split(stage.command, comments=True)]:
            path = Path(word)
            if word and path.is_file() and not path.is_absolute() and ".." not in path.parts:
                yield path.as_posix(), path


def _given(files: Sequence[str | Path]) -> Iterator[tuple[str, Path]]:
    for place in map(Path, files):
        yield from _under(place)


def _under(place: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file by its name, or the files of a directory by their paths in it."""
    if not place.is_dir():
        yield place.name, place
        return
    for path in place.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(place).as_posix(), path


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError as error:
        raise bad_request(f"a file of the program cannot be read: {error}") from error
