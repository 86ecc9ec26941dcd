"""Room on a device: states that are there, and processes wherever their state is."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, NodeId
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.device.space import resident_bytes
from plexsvc.scheduler.core.vocabulary import Place
from tests.fakes.fake_world import FakeWorld

PLACE = Place(node_id=NodeId("n0"), device=0)


def two_jobs(
    *, device_bytes: int, parked_bytes: int = 0, pass_bytes: int = 0, model_bytes: int = 0
) -> FakeWorld:
    world = FakeWorld(
        device_bytes=device_bytes,
        parked_bytes=parked_bytes,
        pass_bytes=pass_bytes,
        model_bytes=model_bytes,
    )
    world.join(nbytes=100)
    for job in ("a", "b"):
        world.job(job)
        world.deploy(job)
        world.drain()
    return world


def offloads(world: FakeWorld) -> int:
    return sum(isinstance(action, MoveState) for action in world.log)


def test_two_states_that_fit_stay_unless_their_processes_leave_no_room() -> None:
    assert offloads(two_jobs(device_bytes=45, parked_bytes=0)) == 0
    assert offloads(two_jobs(device_bytes=45, parked_bytes=5)) == 0
    assert offloads(two_jobs(device_bytes=45, parked_bytes=6)) > 0


def test_a_parked_process_still_takes_its_part() -> None:
    world = two_jobs(device_bytes=60, parked_bytes=7)
    devices = world.core.cluster.devices
    assert resident_bytes(devices, devices.at[PLACE]) == 60 + 2 * 7


def test_a_state_that_fits_only_without_its_process_is_refused() -> None:
    world = FakeWorld(device_bytes=95, parked_bytes=6)
    world.join(nbytes=100)
    world.job("a")
    world.deploy("a")
    world.drain()
    assert not world.core.cluster.wpgs


def test_a_model_that_two_share_takes_its_room_once() -> None:
    world = two_jobs(device_bytes=20, model_bytes=60)
    devices = world.core.cluster.devices
    assert (offloads(world), resident_bytes(devices, devices.at[PLACE])) == (0, 100)
    world = two_jobs(device_bytes=21, model_bytes=60)
    devices = world.core.cluster.devices
    assert (offloads(world), resident_bytes(devices, devices.at[PLACE])) == (1, 81)


def test_states_that_stay_leave_room_for_the_largest_pass_alone() -> None:
    world = two_jobs(device_bytes=35, pass_bytes=30)
    devices = world.core.cluster.devices
    assert (offloads(world), resident_bytes(devices, devices.at[PLACE])) == (0, 100)
    world = two_jobs(device_bytes=35, pass_bytes=31)
    devices = world.core.cluster.devices
    assert (offloads(world), resident_bytes(devices, devices.at[PLACE])) == (1, 66)


def test_a_state_that_fits_only_without_its_passes_is_refused_with_what_would_fit() -> None:
    world = FakeWorld(device_bytes=60, parked_bytes=10, pass_bytes=40)
    world.join(nbytes=100)
    world.job("a")
    world.deploy("a")
    world.drain()
    fault = world.core.view.deployments[DeploymentId("a/actor")].fault
    assert fault is not None
    assert fault.code is ErrorCode.NO_PLACEMENT
    assert "needs 110 bytes" in fault.message
    assert "40 of them for passes" in fault.message
    assert "use 75 % of its micro_batch_tokens, recompute, a larger" in fault.message
    assert not world.core.cluster.wpgs
