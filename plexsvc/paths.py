"""Paths that tenants name: below their roots, and opened there without following a link out.

A path is resolved once, where it enters the service: links and `..` are gone from what travels on.
The process that opens it later walks from the root one directory at a time and
follows no link, so that a directory that was exchanged for a link meanwhile leads nowhere. A file
of a model may be a link (caches of models are made of them): then what it points to is resolved
and walked to in the same way. A file with several names is refused, because nobody can tell
whether one of them lies elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexsvc.errors import PlexError, bad_request

MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 4095
"""What the file system takes."""

MAX_NAMES: Final = 8192
"""Names in a directory that is listed."""
MAX_FILES: Final = 1024
"""Files of one directory that are used; in a view each takes a descriptor."""
_UNSHOWN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that no path may hold: it would not be shown as it is."""

_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPath:
    """A resolved path, and the resolved root that it lies below."""

    path: Path
    root: Path


def resolve(text: str, roots: Sequence[Path], *, what: str, remedy: str) -> CheckedPath:
    """Return where `text` lies: an absolute path, or one from the first root that has it.

    What is nowhere yet lies in the first root.

    Raises:
        PlexError: `bad_request` for what is no path, or lies outside; `remedy` ends its message.
    """
    if not text or "\0" in text:
        raise bad_request(f"{what} is {text!r}, which is no path; give one")
    check_names(text, what=what)
    names = [os.fsencode(name) for name in Path(text).parts]
    if max(map(len, names), default=0) > MAX_NAME_BYTES or len(os.fsencode(text)) > MAX_PATH_BYTES:
        raise bad_request(
            f"{what} has {len(os.fsencode(text))} bytes; give one of at most {MAX_PATH_BYTES} "
            f"whose names have at most {MAX_NAME_BYTES}"
        )
    resolved = [Path(os.path.realpath(root)) for root in roots]
    asked = [root / text for root in resolved]  # an absolute path replaces the root
    for candidate in [path for path in asked if os.path.lexists(path)] or asked:
        path = Path(os.path.realpath(candidate))
        for root in resolved:
            if path != root and path.is_relative_to(root):
                check_names(str(path.relative_to(root)), what=what)
                return CheckedPath(path=path, root=root)
    known = ", ".join(str(root) for root in roots) or "none"
    raise bad_request(f"{what} {text!r} lies outside the roots ({known}); {remedy}")


def check_names(path: str, *, what: str) -> None:
    """Refuse a path with a name that is not shown as it is.

    Raises:
        PlexError: `bad_request`.
    """
    is_shown = all(unicodedata.category(char) not in _UNSHOWN for char in path)
    if not is_shown or any(name != name.strip() for name in path.split("/")):
        raise bad_request(
            f"{what} is {path[:256]!a}; give names without control characters, line ends, and "
            "space at their ends"
        )


def read_bounded(path: Path, *, most_bytes: int) -> bytes:
    """Return the contents of a regular file that has at most so many bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - of a descriptor
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path.name} is no regular file")
        data = file.read(most_bytes + 1) if found.st_size <= most_bytes else b""
    if max(found.st_size, len(data)) > most_bytes:  # it may have grown
        raise ValueError(f"{path.name} has {found.st_size} bytes; at most {most_bytes} are read")
    return data


def read_json(path: Path, *, most_bytes: int) -> Any:
    """Return what a JSON file of at most so many bytes holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more bytes, or is not JSON.
    """
    try:
        return json.loads(read_bounded(path, most_bytes=most_bytes))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deep") from error


_aliases: Final[dict[str, str]] = {}
"""Paths under which this process has directories open, and the paths that their users know."""


def told(error: PlexError) -> PlexError:
    """Return an error that names the paths that users know."""
    texts = [error.message, *error.facts.values()]
    for alias, path in tuple(_aliases.items()):  # other threads open theirs meanwhile
        whole = re.compile(re.escape(alias) + r"(?!\d)")  # descriptor 1 is not 12
        texts = [path.join(whole.split(text)) for text in texts]
    return PlexError(error.code, texts[0], **dict(zip(error.facts, texts[1:], strict=True)))


@contextlib.contextmanager
def known_as(alias: str, path: Path | str) -> Iterator[Path]:
    """Yield an alias of `path`; errors raised inside name the path, and so does `told`."""
    _aliases[alias] = str(path)
    try:
        yield Path(alias)
    except PlexError as error:
        raise told(error) from error
    finally:
        del _aliases[alias]


@contextlib.contextmanager
def opened_directory(place: CheckedPath, *, make: bool = False) -> Iterator[Path]:
    """Yield a path that means this directory, whatever its name leads to by now.

    With `make`, directories that are missing are made. Errors raised inside name the real path.

    Raises:
        PlexError: `bad_request` when it is not there, or a link is on the way.
    """
    fd = _walk(place.root, place.path, make=make)
    try:
        with known_as(f"/proc/self/fd/{fd}", place.path) as alias:
            yield alias
    finally:
        os.close(fd)


def open_file(place: CheckedPath) -> int:
    """Return a descriptor of a regular file, for reading; the caller closes it.

    Raises:
        PlexError: `bad_request` when it is none, has another name too, or leads out of the root.
    """
    target = Path(os.path.realpath(place.path))
    if not target.is_relative_to(place.root):
        raise _refused(place.path, "it is a link that leads out of its root")
    parent = _walk(place.root, target.parent)
    try:
        fd = os.open(target.name, _FILE, dir_fd=parent)
    except OSError as error:
        raise _refused(place.path, error.strerror or str(error)) from error
    finally:
        os.close(parent)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return fd
    os.close(fd)
    names = f"it has {found.st_nlink} names (hard links); copy it"
    raise _refused(place.path, names if stat.S_ISREG(found.st_mode) else "it is not a regular file")


def read_file(place: CheckedPath, *, offset: int = 0, nbytes: int) -> bytes:
    """Return at most `nbytes` of a file.

    Raises:
        PlexError: as `open_file`.
    """
    fd = open_file(place)
    try:
        return os.pread(fd, nbytes, offset)
    finally:
        os.close(fd)


@contextlib.contextmanager
def view(
    place: CheckedPath,
    *,
    below: Path | None = None,
    only: Callable[[str], object] = lambda _: True,
) -> Iterator[Path]:
    """Yield a directory of the same files, each opened now: what happens to their names is nothing.

    For readers that open by name, as those of models do. Directories in it are left out, and so are
    files that `only` does not want. The view is made in `below` (default: the directory for
    temporary files) and lasts as long as the block.

    Raises:
        PlexError: as `file_names` and `open_file`.
    """
    names = file_names(place, only=only)
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(temporary(below)) / place.path.name
        seen.mkdir()
        for name in names:
            fd = open_file(CheckedPath(path=place.path / name, root=place.root))
            stack.callback(os.close, fd)
            (seen / name).symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        yield stack.enter_context(known_as(str(seen), place.path))


@contextlib.contextmanager
def temporary(below: Path | None = None) -> Iterator[Path]:
    """Yield a directory that lasts as long as the block; what killed processes left goes."""
    home = below or Path(tempfile.gettempdir())
    made = Path(tempfile.mkdtemp(prefix=f"view-{os.getpid()}-", dir=home))
    try:
        _drop_views_of_the_dead(home)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def model_view(model: str, *, root: str, socket: str) -> Iterator[str]:
    """Yield the view of a process's model, beside its node's `socket`; without a root, the model.

    Raises:
        PlexError: as `view`.
    """
    if not (model and root):
        yield model
        return
    home = Path(socket).parent if socket else None
    with view(CheckedPath(path=Path(model), root=Path(root)), below=home) as directory:
        yield str(directory)


def file_names(place: CheckedPath, *, only: Callable[[str], object] = lambda _: True) -> list[str]:
    """Return the names in a directory that are not directories', sorted; those that `only` wants.

    Raises:
        PlexError: as `opened_directory`; `bad_request` for more than `MAX_NAMES` names, more than
            `MAX_FILES` that are wanted, or one that cannot be shown.
    """
    found: list[str] = []
    with opened_directory(place) as directory, os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_NAMES:
                raise _refused(place.path, f"it has more than {MAX_NAMES} names")
            if only(entry.name) and not _is_directory(entry):
                check_names(entry.name, what=f"a file in {place.path}")
                found.append(entry.name)
    if len(found) > MAX_FILES:
        raise _refused(place.path, f"it has {len(found)} files; at most {MAX_FILES} are opened")
    return sorted(found)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: opening it says so
        return False


def check_files(place: CheckedPath) -> None:
    """Refuse a directory whose files a view could not hold, opening one at a time.

    Raises:
        PlexError: as `file_names` and `open_file`.
    """
    for name in file_names(place):
        os.close(open_file(CheckedPath(path=place.path / name, root=place.root)))


def _drop_views_of_the_dead(home: Path) -> None:
    """Remove what processes left that were killed."""
    for left in home.glob("view-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)


def _walk(root: Path, directory: Path, *, make: bool = False) -> int:
    """Return a descriptor of a directory at or below a root, reached without following a link."""
    if not directory.is_relative_to(root) or ".." in directory.parts:
        raise _refused(directory, f"it lies outside {root}")
    try:
        fd = os.open(root, _DIRECTORY)
        for part in directory.relative_to(root).parts:
            above = fd
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=above)
                fd = os.open(part, _DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
    except OSError as error:
        raise _refused(directory, error.strerror or str(error)) from error
    return fd


def _refused(path: Path, found: str) -> PlexError:
    return bad_request(
        f"{path} cannot be used: {found}; it must be reached from its root without links", path=path
    )
