"""Jobs whose states do not fit host memory take turns over the disk, as if each were alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import plexclient as plex
from plexclient.wire.v1 import statemanager_pb2, statemanager_pb2_grpc
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.direct_io import needs_direct_io
from tests.rigs.live_cluster import MIB, TRAIN, LiveCluster, start_cluster
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, run_interleaved

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    needs_direct_io,
]

JOBS = 4
HOST_BYTES = 5 * MIB
"""Less than the states of all; enough for one of them, and a copy of it to take digests from."""


def inventory(live: LiveCluster) -> statemanager_pb2.InventoryReply:
    node = live.status().nodes[0]
    with open_blocking_channel(node.address.state_manager, live.keys) as channel:
        stub = statemanager_pb2_grpc.StateManagerStub(channel)
        return stub.Inventory(statemanager_pb2.InventoryRequest(), timeout=120)


def deploy(job: plex.Job, model: Path, *, seed: int) -> plex.Actor:
    adam = plex.AdamW(lr=1e-2)
    return job.deploy("actor", model=str(model), backend="megatron", optimizer=adam, seed=seed)


def test_jobs_that_do_not_fit_host_memory_train_in_turn_as_if_alone(
    tmp_path: Path, tiny_model: Path
) -> None:
    node = f'disk_bytes = {16 * MIB}\ndisk_dir = "{tmp_path / "disk"}"\n'
    with start_cluster(
        tmp_path, nodes={"node-a": [TRAIN]}, host_bytes=HOST_BYTES, node=node
    ) as live:
        with live.connect() as connection:
            alone = []
            for seed in range(JOBS):
                with connection.job(f"alone-{seed}") as job:
                    actor = deploy(job, tiny_model, seed=seed)
                    run_interleaved([Program(actor, seed)])
                    alone.append(actor.digest())
            with ExitStack() as stack:
                jobs = [stack.enter_context(connection.job(f"job-{n}")) for n in range(JOBS)]
                actors = [deploy(job, tiny_model, seed=n) for n, job in enumerate(jobs)]
                assert sum(actor.info.state_bytes for actor in actors) > HOST_BYTES
                run_interleaved([Program(actor, n) for n, actor in enumerate(actors)])
                found = inventory(live)
                assert found.disk_bytes_used > 0
                assert found.host_bytes_used <= HOST_BYTES
                assert [actor.digest() for actor in actors] == alone
        wait_until(lambda: inventory(live).disk_bytes_used == 0, what="nothing is left on disk")
