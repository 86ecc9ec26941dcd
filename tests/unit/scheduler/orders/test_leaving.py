"""Instances that sleep while the generate that they were part of goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from tests.rigs.scheduler_rig import held_open, start_rig, until

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED
SLEEP, WAKE = rollout_pb2.INSTANCES_MOVE_SLEEP, rollout_pb2.INSTANCES_MOVE_WAKE


async def test_another_wakes_on_the_device_of_an_instance_that_is_reported_asleep(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 2}]) as rig:
        for job in "ab":
            await rig.job(job)
        await rig.deploy("a", "rollout", role="rollout", shared=True, instances=2)
        addresses = list(rig.rollout.addresses)
        await rig.deploy("b", "rollout", role="rollout", shared=True)
        assert (await rig.run("a", "generate", name="rollout")).state == ANSWERED
        before = list(rig.rollout.moves)
        begun, go_on = held_open(rig, "generate")
        async with asyncio.TaskGroup() as group:
            operation = rig.operation("a", "generate", name="rollout")
            running = group.create_task(rig.scheduler.submit(operation))
            await asyncio.wait_for(begun.wait(), 120)
            others = group.create_task(rig.run("b", "generate", name="rollout"))
            (wpg,) = (w for w in rig.driver.cluster.wpgs.values() if w.job_id == "a")
            (other,) = (w for w in rig.driver.cluster.wpgs.values() if w.job_id == "b")
            left = wpg.places.index(other.places[0])
            rig.rollout.left(wpg.wpg_id, "nowhere:1", operation.operation_id)
            rig.rollout.left(wpg.wpg_id, addresses[left], operation.operation_id)
            await until(lambda: rig.rollout.moves == [*before, ("b/rollout", WAKE)])
            go_on.set()
        assert (running.result().state, others.result().state) == (ANSWERED, ANSWERED)
        await until(lambda: rig.rollout.moves[-1] == ("a/rollout", SLEEP))
