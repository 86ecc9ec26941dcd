"""Regions at home in host memory, and lent ones, which their rank changes while it is parked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from tests.rigs.kept_daemon import KeptDaemon
from tests.rigs.state_daemon import Client, Daemon

pytestmark = pytest.mark.process

MIB = 1 << 20
REGIONS = [
    {"name": "params", "nbytes": 2 * MIB + 100, "home": "lent"},
    {"name": "moments", "nbytes": 5 * MIB, "home": "host"},
    {"name": "grads", "nbytes": MIB, "droppable": True, "home": "lent"},
]
"""The moments alone are more than a device has."""
STEPPED = {"scalars": {"adam_step": 1}, "applied_seq": 2, "writes": 2}


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptDaemon]:
    with ExitStack() as stack:
        yield KeptDaemon(tmp_path, stack)


def trained(daemon: Daemon) -> Client:
    """Return a rank with gradients, parked."""
    rank = daemon.client("a")
    rank("allocate", regions=REGIONS)
    for seed, name in enumerate(("params", "grads", "moments")):
        rank("fill", name=name, seed=seed)
    rank("set", dirty=["params", "moments", "grads"], applied_seq=1, scalars={"adam_step": 0})
    return rank


def test_a_device_holds_nothing_of_a_region_at_home_on_the_host(daemon: Daemon) -> None:
    rank = trained(daemon)
    (wpg,), (device, _) = daemon.inventory().wpgs, daemon.inventory().devices
    assert device.bytes_used == wpg.device_bytes == 3 * MIB + 4096
    assert wpg.host_bytes == 8 * MIB + 4096
    moments = rank("hash", name="moments")
    moved = daemon.move("a", "HOST")
    assert (moved.error.code, moved.nbytes) == ("", 3 * MIB + 4096)
    assert daemon.inventory().devices[0].bytes_used == 0
    assert rank("hash", name="moments") == moments
    assert daemon.move("a", "DEVICE").nbytes == 3 * MIB + 4096
    assert rank("hash", name="moments") == moments


def test_what_a_rank_leaves_of_its_parked_state_is_loaded(daemon: Daemon) -> None:
    rank = trained(daemon)
    held = {name: rank("hash", name=name) for name in ("params", "grads")}
    daemon.move("a", "HOST")
    assert {name: rank("hash", name=f"{name}@host") for name in held} == held
    changed = rank("fill", name="params@host", seed=7)
    assert rank("stepped", **STEPPED), "it is parked as before"
    assert daemon.inventory().wpgs[0].applied_seq == 2
    moved = daemon.move("a", "DEVICE")
    assert (moved.error.code, moved.nbytes) == ("", 2 * MIB + 4096), "clean gradients stay away"
    assert rank("hash", name="params") == changed
    assert rank("touch", name="grads") == 0
    assert rank("get", field="restored_scalars") == {"adam_step": 1}


def test_a_rank_that_is_not_parked_has_left_nothing(daemon: Daemon) -> None:
    rank = trained(daemon)
    with pytest.raises(PlexError) as refused:
        rank("stepped", **STEPPED)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    daemon.move("a", "HOST")
    daemon.move("a", "DEVICE")
    assert rank("get", field="restored_scalars") == {"adam_step": 0}


def test_a_successor_has_what_a_rank_left_of_its_parked_state(kept: KeptDaemon) -> None:
    rank = trained(kept)
    kept.move("a", "HOST")
    changed = rank("fill", name="params@host", seed=7)
    moments = rank("fill", name="moments", seed=8)
    rank("stepped", **STEPPED)
    kept.kill()
    again = rank("fill", name="params@host", seed=9)  # of the next step, under the next one
    assert rank("stepped", **{**STEPPED, "writes": 3})
    assert again != changed
    assert kept.move("a", "DEVICE").error.code == ""
    assert (rank("hash", name="params"), rank("hash", name="moments")) == (again, moments)
    assert rank("get", field="restored_scalars") == {"adam_step": 1}
