"""A successor removes what its predecessor's unfinished saves left."""

from __future__ import annotations

from pathlib import Path

from plexsvc.clock import SystemClock
from plexsvc.statemanager import adoption, checkpoints
from plexsvc.statemanager.book import Book, BookEntry
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.moves import StateMover
from plexsvc.statemanager.node import ManagedNode
from tests.rigs.keys import keys_file


def adopt(home: Path, directories: list[Path], root: Path) -> None:
    config = StateManagerConfig(
        node_id="n0",
        runtime_dir=home,
        keys_file=keys_file(home),
        devices=(),
        host_bytes=1 << 20,
        staging_bytes=1 << 20,
    )
    node = ManagedNode(config, book=Book(), arenas={})
    facts = [{"directory": str(directory), "root": str(root)} for directory in directories]
    entries = [BookEntry(key=(checkpoints.SAVE, str(i)), facts=f) for i, f in enumerate(facts)]
    try:
        adoption.adopt(node, Clients(node), StateMover(node, clock=SystemClock()), entries)
    finally:
        node.close()


def test_an_unfinished_save_goes_and_what_no_save_made_stays(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    left = f".out.tmp-{checkpoints._host()}-0badcafe"
    for directory in (root / "runs", outside):
        (directory / left).mkdir(parents=True)
        (directory / "out").mkdir()
    (root / "link").symlink_to(outside)
    adopt(tmp_path, [root / "gone", root / "link", root / "runs"], root)
    assert [path.name for path in (root / "runs").iterdir()] == ["out"]
    assert sorted(path.name for path in outside.iterdir()) == [left, "out"]
