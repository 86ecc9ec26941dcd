"""Checkpoints in an object store, by fsspec, which knows the kinds of stores by their URLs.

An object store has no directories and renames nothing. Checkpoint `JOB_ID/NAME@STEP` is written as
objects `JOB_ID/NAME@STEP~ATTEMPT/FILE`. The seal is put last, and readers see sealed attempts only.
An attempt without a seal is removed by the deployment's next checkpoint.

Where a store answers, and with what credentials, stands in the environment of each process that
uses it: `FSSPEC_S3_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID` and so on.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plexsvc import paths, progress
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found, unavailable
from plexsvc.weights.checkpoints import Seal, read_seal
from plexsvc.weights.checksums import BLOCK_BYTES
from plexsvc.weights.owner import SEAL, check_owner

MARK: Final = "~"
"""Between the name of a checkpoint and that of the attempt to write it."""

NAME: Final = re.compile(r"(?!\.{1,2}/)([^/@]+)/([^/@]+@\d+)")
"""Of a checkpoint: its job's id, and its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """What an attempt to write a checkpoint has put into a store."""

    name: str
    """Of the checkpoint, below what was listed."""
    url: str
    files: Mapping[str, int]
    """Sizes in bytes by name."""
    made_us: int
    """When it was sealed; 0: it is not."""


def is_url(place: str) -> bool:
    """Whether a place is in an object store. No path that was resolved looks like that."""
    return "://" in place


@contextmanager
def reached(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL, and the path in it; errors inside name the URL.

    Raises:
        PlexError: `forbidden` for the credentials, `not_found` for a bucket or an object,
            `bad_request` for a store that nothing is installed for; `unavailable`.
    """
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url, use_listings_cache=False)
        fs.auto_mkdir = True  # of file://, which has directories
        yield fs, path
    except PlexError:
        raise
    except Exception as error:  # each kind of store has errors of its own
        raise _refused(url, error) from error


def _refused(url: str, error: Exception) -> PlexError:
    found = f"object store {url}: {type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return not_found(f"{found}; have the operator make the bucket, or look whether it was lost")
    if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
        text = f"{found}; have the operator put the right ones into the environment of every node"
        return PlexError(ErrorCode.FORBIDDEN, text)
    if isinstance(error, ImportError | ValueError):
        return bad_request(f"{found}; have the operator install it (s3fs for s3://) on every node")
    return unavailable(f"{found}; try again when it answers")


def attempts(url: str) -> list[StoredCheckpoint]:
    """Return what lies below a URL, if one is given, oldest first, and by step in one second.

    Raises:
        PlexError: as `reached`.
    """
    if not url:
        return []
    with reached(url) as (fs, root):
        files = defaultdict[str, dict[str, int]](dict)
        for path, info in fs.find(root, detail=True).items():
            directory, _, file = path.rpartition("/")
            files[directory][file] = info["size"]
        found = []
        for directory, sizes in files.items():
            below = directory.removeprefix(f"{root}/")
            name, mark, _ = below.rpartition(MARK)
            if mark:
                seal = fs.modified(f"{directory}/{SEAL}").timestamp() if SEAL in sizes else 0
                made_us = int(seal * 1_000_000)
                found.append(
                    StoredCheckpoint(name=name, url=f"{url}/{below}", files=sizes, made_us=made_us)
                )
    return sorted(found, key=lambda one: (one.made_us, len(one.name), one.name))


def find(store: str, name: str) -> str:
    """Return the URL of the whole checkpoint `JOB_ID/NAME@STEP` below that of a store, or "".

    Raises:
        PlexError: as `reached`.
    """
    named = NAME.fullmatch(name) if store else None
    if named is None:
        return ""
    found = [one for one in attempts(f"{store}/{named[1]}") if one.name == named[2] and one.made_us]
    return found[-1].url if found else ""


def remove(url: str) -> None:
    """Remove an attempt, its seal first: no reader sees half of one.

    Raises:
        PlexError: as `reached`.
    """
    with reached(url) as (fs, path):
        with suppress(FileNotFoundError):
            fs.rm_file(f"{path}/{SEAL}")
        fs.rm(path, recursive=True)


@contextmanager
def opened(
    path: str, root: str, *, tenant: str, keeps: bool = True
) -> Iterator[tuple[Path, Seal | None]]:
    """Yield a directory with the files of a checkpoint, and its seal; None for a plain model.

    Of a checkpoint in a store, other than tensors are there; of these, blocks come when the seal
    checks them. Without `keeps` nothing comes, and blocks are only checked.

    Raises:
        PlexError: as `reached`, `paths.view`, `check_owner` and `read_seal`.
    """
    with ExitStack() as stack:
        if is_url(path):
            yield stack.enter_context(_view(path, keeps=keeps))
        else:
            place = paths.CheckedPath(path=Path(path), root=Path(root))
            directory = stack.enter_context(paths.view(place))
            check_owner(directory, tenant=tenant, what="load:")
            yield directory, read_seal(directory)


@contextmanager
def _view(url: str, *, keeps: bool) -> Iterator[tuple[Path, Seal | None]]:
    with paths.temporary() as made, paths.known_as(str(made), url) as directory:
        with reached(url) as (fs, path):
            for found, info in fs.find(path, detail=True).items():
                with (directory / found.rpartition("/")[2]).open("wb") as file:
                    file.truncate(info["size"])  # takes no room on the disk
            (directory / SEAL).write_bytes(fs.cat_file(f"{path}/{SEAL}"))

        def bring(name: str, blocks: Sequence[int]) -> list[bytes]:
            lows = [block * BLOCK_BYTES for block in blocks]
            highs = [low + BLOCK_BYTES for low in lows]
            with reached(f"{url}/{name}") as (fs, path):
                found: list[bytes] = fs.cat_ranges(
                    [path] * len(lows), lows, highs, on_error="raise"
                )
            progress.advance()
            if keeps:
                with (directory / name).open("r+b") as file:
                    for low, data in zip(lows, found, strict=True):
                        os.pwrite(file.fileno(), data, low)
            return found

        seal = read_seal(directory, bring)
        assert seal is not None, url
        for name in sorted(seal.names) if keeps else ():
            if name.endswith(".safetensors"):
                seal.check_header(name)
            else:
                seal.check_file(name)
        yield directory, seal
