"""Keys of the tests' cluster, and of one that is not theirs."""

from __future__ import annotations

from pathlib import Path

from plexsvc.rpc.keys import make_keys, write_keys

KEYS = make_keys()
FOREIGN = make_keys()


def keys_file(directory: Path) -> Path:
    """Return a file of the tests' keys in a directory that is there."""
    path = directory / "keys.json"
    if not path.exists():
        write_keys(path, KEYS)
    return path
