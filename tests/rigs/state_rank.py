"""A real client process of the state manager for tests: obeys JSON commands on stdin."""

# ruff: noqa: T201 - answers go to stdout

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import PlexError
from plexsvc.ids import VersionId
from plexsvc.residency import Home
from plexsvc.statelink import mapping
from plexsvc.statelink.client import ExportReport, Region, RegionSpec, StateClient
from plexsvc.statelink.member import Member


class Rank:
    """State that tests can fill and hash; says it is dirty and what its scalars are as told."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.dirty: list[str] = []
        self.scalars: dict[str, Any] = {}
        self.written: dict[str, Any] = {}
        self.restored_scalars: dict[str, Any] = {}
        self.applied_seq = 0
        self.fail_on = ""
        self.kill_on, self.kill_pid = "", 0
        self.regions: dict[str, Region] = {}
        self.held: list[memoryview] = []
        self.client = StateClient(
            table.pop("socket"), cast("Member", SimpleNamespace(**table)), handlers=self
        )

    def reached(self, step: str) -> None:
        """Kill the state manager where the test wants it dead."""
        if step == self.kill_on:
            self.kill_on = ""
            os.kill(self.kill_pid, signal.SIGKILL)

    def export(self, *, beside: bool) -> ExportReport:
        if beside:
            return ExportReport(dirty=frozenset(), scalars=self.written, applied_seq=1)
        self.reached("export")
        if self.fail_on == "export":
            raise RuntimeError("told to fail in export")
        return ExportReport(
            dirty=frozenset(self.dirty), scalars=self.scalars, applied_seq=self.applied_seq
        )

    def restored(self, scalars: dict[str, Any]) -> None:
        if self.fail_on == "restored":
            raise RuntimeError("told to fail in restored")
        if self.fail_on == "die":
            os._exit(7)
        self.reached("restored")
        self.restored_scalars = scalars

    def bytes_of(self, name: str) -> np.ndarray:
        region = self.regions[name]
        return np.ctypeslib.as_array(mapping.buffer_at(region.memory.address, region.nbytes))

    def do_allocate(self, regions: list[dict[str, Any]]) -> list[int]:
        wanted = [{**region, "home": Home(region.get("home", "device"))} for region in regions]
        self.regions |= self.client.allocate([RegionSpec(**region) for region in wanted])
        for region in self.regions.values():
            region.park = partial(self.park, region)  # type: ignore[method-assign]
        return [self.regions[region["name"]].memory.address for region in regions]

    def park(self, region: Region) -> None:
        Region.park(region)
        self.reached("park")

    def do_stepped(self, **facts: Any) -> bool:
        """Say what is left of parked state, as a rank does that worked on it."""
        report = ExportReport(dirty=frozenset(facts.pop("dirty", ())), **facts)
        self.client.stepped(report)
        return self.client.is_parked

    def do_addresses(self) -> list[int]:
        return [region.memory.address for region in self.regions.values()]

    def do_fill(self, name: str, seed: int) -> str:
        target = self.bytes_of(name)
        target[:] = np.random.default_rng(seed).integers(0, 256, target.size, dtype=np.uint8)
        return self.do_hash(name)

    def do_share(self, name: str) -> bool:
        self.client.seal(name)
        return self.regions[name].is_read_only

    def do_read_only(self) -> list[str]:
        return [name for name, region in self.regions.items() if region.is_read_only]

    def do_put(self, name: str, offset: int, values: list[float]) -> None:
        data = np.asarray(values, dtype="<f4").view(np.uint8)
        self.bytes_of(name)[offset : offset + data.size] = data

    def do_touch(self, name: str) -> int:
        return int(self.bytes_of(name)[0])

    def do_hash(self, name: str) -> str:
        return hashlib.sha256(self.bytes_of(name).data).hexdigest()

    def do_set(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    def do_get(self, field: str) -> Any:
        return getattr(self, field)

    def do_index(self, pieces: list[dict[str, Any]]) -> None:
        self.client.set_index([statemanager_pb2.CanonicalPiece(**piece) for piece in pieces])

    def do_rss_shmem(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("RssShmem"))

    def do_open_version(self, deployment_id: str, version: int) -> str:
        view = self.client.open_version(VersionId(deployment_id, 0, version)).data
        assert view.readonly
        self.held.append(view)
        return hashlib.sha256(view).hexdigest()

    def do_fetch_version(self, version: dict[str, Any], holder: dict[str, Any]) -> str:
        view = self.client.fetch_version(
            statemanager_pb2.PublishedVersion(**version), statemanager_pb2.VersionHolder(**holder)
        ).data
        assert view.readonly
        self.held.append(view)
        return hashlib.sha256(view).hexdigest()

    def do_change(self, name: str, seed: int, share: float) -> None:
        """Turn a bit of each of some elements of 32 bits."""
        target = self.bytes_of(name).view(np.uint32)
        target[np.random.default_rng(seed).random(target.size) < share] ^= 1

    def do_hash_held(self) -> str:
        return hashlib.sha256(self.held[-1]).hexdigest()

    def do_drop_held(self) -> None:
        self.held.clear()

    def do_open_staged(self, staging_id: str) -> dict[str, Any]:
        specs, view = self.client.open_staged(bytes.fromhex(staging_id))
        assert view.readonly
        return {
            "names": [spec.name for spec in specs],
            "sha256": hashlib.sha256(view).hexdigest(),
            "nbytes": len(view),
        }

    def do_create_staged(self, text: str, seal: bool) -> str:
        spec = common_pb2.TensorSpec(name="out", dtype="U8", shape=[len(text)], nbytes=len(text))
        staging_id, view = self.client.create_staged([spec], len(text))
        view[:] = text.encode()
        if seal:
            self.client.seal_staged(staging_id)
        return staging_id.hex()

    def do_seal(self, staging_id: str) -> None:
        self.client.seal_staged(bytes.fromhex(staging_id))

    def do_drop_staged(self, staging_id: str) -> None:
        self.client.drop_staged(bytes.fromhex(staging_id))

    def do_close(self) -> None:
        self.client.close()


def main() -> None:
    rank: Rank | None = None
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        answer: dict[str, Any]
        try:
            if name == "connect":
                rank = Rank(command)
                answer = {"ok": None}
            else:
                assert rank is not None
                answer = {"ok": getattr(rank, f"do_{name}")(**command)}
        except PlexError as error:
            answer = {"code": str(error.code), "message": error.message, "facts": error.facts}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
