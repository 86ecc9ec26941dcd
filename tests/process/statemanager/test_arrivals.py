"""Versions reach another node once, as deltas where that is sooner, bit by bit as published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.state_daemon import Client, Daemon
from tests.rigs.waiting import wait_until

STATE_BYTES = 20 << 20
"""Five blocks."""


@dataclass(slots=True)
class Pair:
    """A trainer with its state manager, and another node with one."""

    here: Daemon
    there: Daemon
    trainer: Client

    def holder(self, address: str = "") -> dict[str, Any]:
        return {"node_id": "n0", "state_manager": address or self.here.ready["address"]}

    def publish(self, version: int, *, share: float = 0.01) -> str:
        """Change a share of the elements and publish; return the hash of the bytes."""
        self.trainer("change", name="w", seed=version, share=share)
        self.here.published("trainer", version)
        reply = self.trainer("open_version", deployment_id="job/actor", version=version)
        self.trainer("drop_held")
        return str(reply)

    def arrived(self) -> int:
        return int(self.there.inventory().arrived_bytes)

    def fetch(self, reader: Client, version: int, *, address: str = "") -> str:
        named = {"deployment_id": "job/actor", "version": version}
        return str(reader("fetch_version", version=named, holder=self.holder(address)))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two nodes; what the trainer holds is random."""
    keys = f"host_bytes = {256 << 20}\nstaging_bytes = 1048576"
    with ExitStack() as stack:
        daemons = []
        for name in ("n0", "n1"):
            (tmp_path / name).mkdir(mode=0o700)
            daemons.append(
                Daemon(
                    tmp_path / name,
                    stack,
                    keys=keys,
                    devices=1,
                    node_id=name,
                    device_bytes=32 << 20,
                )
            )
        trainer = daemons[0].client("trainer")
        trainer("allocate", regions=[{"name": "w", "nbytes": STATE_BYTES}])
        trainer("fill", name="w", seed=0)
        piece = {
            "kind": "param",
            "name": "w",
            "global_shape": [STATE_BYTES // 4],
            "start": [0],
            "size": [STATE_BYTES // 4],
            "stride": [1],
            "dtype": "F32",
            "region": "w",
        }
        trainer("index", pieces=[piece])
        yield Pair(daemons[0], daemons[1], trainer)


def test_the_next_version_comes_once_and_as_a_delta_to_the_last(pair: Pair) -> None:
    readers = [pair.there.client(f"reader-{number}") for number in range(2)]
    sizes = []
    for version in (1, 2, 3):
        wanted, before = pair.publish(version), pair.arrived()
        assert [pair.fetch(reader, version) for reader in readers] == [wanted] * 2
        sizes.append(pair.arrived() - before)
    assert sizes[0] == STATE_BYTES
    assert max(sizes[1:]) < STATE_BYTES / 50
    assert pair.there.inventory().host_bytes_used == STATE_BYTES, "the newest alone stays"
    for reader in readers:
        reader.process.kill()
    wait_until(lambda: pair.there.inventory().host_bytes_used == 0, what="the job left")
