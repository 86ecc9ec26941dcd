"""Attempts to write a checkpoint into an object store (`weights/object_store.py`)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plexsvc import paths
from plexsvc.errors import PlexError, unavailable
from plexsvc.weights import object_store
from plexsvc.weights.checkpoints import Sealed
from plexsvc.weights.owner import SEAL

ATTEMPT_BYTES: Final = 4
"""Random bytes, in hexadecimal, at the end of an attempt's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """A checkpoint that is written below a URL, and nobody sees until it is sealed."""

    target: str
    scratch: Path
    """Of this host: files other than those of tensors."""

    def prepare(self, names: Iterable[str]) -> None:
        """Do nothing: objects need not be there to be written."""

    def check(self, sealed: Mapping[str, Sealed]) -> None:
        """Refuse objects that are not what was written.

        Raises:
            PlexError: `unavailable`, naming the first one; as `object_store.reached`.
        """
        with object_store.reached(self.target) as (fs, path):
            there = {at: info["size"] for at, info in fs.find(path, detail=True).items()}
        for name, one in sealed.items():
            if (found := there.get(f"{path}/{name}")) != one.nbytes:
                raise unavailable(
                    f"{self.target}/{name} has {found} bytes where {one.nbytes} were put: it was "
                    "removed or cut meanwhile; the next checkpoint is written anew"
                )

    def publish(self, sealed: Mapping[str, Sealed], *, tenant: str, kept: int) -> None:
        """Put what is in scratch, the seal last; then remove what the checkpoint replaces.

        Raises:
            PlexError: as `check`.
        """
        del tenant  # whose prefix it is
        with object_store.reached(self.target) as (fs, path):
            for file in self.scratch.iterdir():
                if file.name != SEAL:
                    fs.put_file(str(file), f"{path}/{file.name}")
            # Whoever removes attempts may have taken this one for one that was left.
            self.check(sealed)
            fs.pipe_file(f"{path}/{SEAL}", (self.scratch / SEAL).read_bytes())
        with suppress(PlexError):
            self._remove_others(kept)

    def _remove_others(self, kept: int) -> None:
        """Remove attempts that were given up or replaced, and all but the newest checkpoints."""
        job, _, own = self.target.rpartition("/")
        own = own.rpartition(object_store.MARK)[0]
        series = own.partition("@")[0] + "@"
        found = [one for one in object_store.attempts(job) if one.name.startswith(series)]
        whole = [one.url for one in found if one.made_us and one.name != own] + [self.target]
        stays = whole[-kept:]  # all, if none is said
        for one in found:
            if one.url not in stays:
                object_store.remove(one.url)


@contextmanager
def begun(url: str) -> Iterator[StoredAttempt]:
    """Yield a new attempt to write the checkpoint of a URL; one that fails is removed."""
    target = f"{url}{object_store.MARK}{secrets.token_hex(ATTEMPT_BYTES)}"
    with paths.temporary() as scratch:
        try:
            yield StoredAttempt(target=target, scratch=scratch)
        except BaseException:
            with suppress(PlexError):
                object_store.remove(target)
            raise
