"""The view of state: tiers, bytes of residents in each, and moves under way."""

from __future__ import annotations

from rich.console import Console

from plexclient.wire.v1 import common_pb2, service_pb2
from plexclient.wire.v1.service_pb2 import NodeResident as Resident
from plexsvc.show.state import state_view

MIB = 1 << 20


def shown(*nodes: service_pb2.NodeView) -> dict[str, list[str]]:
    """Return the lines of the view, each as its cells, by the first."""
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(state_view(nodes))
    lines = [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in capture.get().splitlines()
    ]
    return {cells[0]: cells[1:] for cells in lines if cells}


def node(*residents: Resident) -> service_pb2.NodeView:
    return service_pb2.NodeView(
        node_id="a",
        host_bytes_used=6 * MIB,
        host_bytes_total=8 * MIB,
        disk_bytes_used=3 * MIB,
        disk_bytes_total=4 * MIB,
        sunk_bytes=5 * MIB,
        risen_bytes=2 * MIB,
        queued_bytes=MIB,
        spared_bytes=7 * MIB,
        replica_bytes=3 * MIB // 2,
        devices=[
            service_pb2.DeviceStatus(kind="train", bytes_used=3 * MIB, bytes_total=4 * MIB),
            service_pb2.DeviceStatus(kind="rollout", index=1, bytes_total=MIB),
        ],
        residents=residents,
    )


def test_every_tier_says_what_is_used_and_free() -> None:
    lines = shown(node())
    assert lines["a:0"] == ["3.0", "1.0", "4.0"]
    assert lines["a host"] == [
        "6.0",
        "2.0",
        "8.0",
        "7.0 were clean or replicas: not copied, 1.5 of replicas are not stored",
    ]
    assert lines["a disk"] == ["3.0", "1.0", "4.0", "5.0 out, 2.0 back, 1.0 to come back next"]
    assert "a:1" not in lines, "an engine's memory is its own"


def test_residents_show_their_bytes_in_each_tier_and_how_fast_they_move() -> None:
    lines = shown(
        node(
            Resident(
                deployment_id="j/actor",
                residency=common_pb2.RESIDENCY_DEVICE,
                device_bytes=3 * MIB,
                host_bytes=2 * MIB,
                disk_bytes=MIB,
            ),
            Resident(residency=common_pb2.RESIDENCY_HOST, host_bytes=2 * MIB),
            Resident(
                deployment_id="k/actor",
                residency=common_pb2.RESIDENCY_HOST,
                device_bytes=4 * MIB,
                host_bytes=4 * MIB,
                move_us=500_000,
                moved_bytes=MIB,
            ),
            Resident(deployment_id="k/rollout", residency=common_pb2.RESIDENCY_DEVICE),
        )
    )
    assert lines["j/actor"] == ["a", "device", "3.0", "2.0", "1.0", "-"]
    assert lines["another tenant's"] == ["a", "host", "0.0", "2.0", "0.0", "-"]
    assert lines["k/actor"][2:5] == ["4.0", "4.0", "0.0"]
    assert lines["k/actor"][5] == "1.0 in 0.5 s, 2.0/s, 1.5 s left"
    assert "k/rollout" not in lines, "the state manager has nothing of it"
