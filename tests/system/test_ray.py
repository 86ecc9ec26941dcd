"""A cluster whose nodes are Ray's: they come, work, are told to leave, and die with Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import plexclient as plex
from plexclient.wire.v1 import service_pb2
from tests.rigs.live_cluster import MIB, ROLLOUT, TRAIN, Service
from tests.rigs.ray_cluster import PYTHON, RayCluster
from tests.rigs.waiting import wait_until
from tests.system.test_two_nodes import train

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    with RayCluster() as cluster:
        yield cluster


def on_ray(ray: RayCluster) -> str:
    pool = f"host_bytes = {1024 * MIB}, staging_bytes = {256 * MIB}, devices"
    return (
        f'launcher = "ray"\nray.address = "{ray.address}"\nray.python = "{PYTHON}"\n'
        f'ray.directory = "{ray.nodes_directory}"\n'
        f"ray.pools.both = {{ {pool} = [{TRAIN}, {ROLLOUT}] }}\n"
        f"ray.pools.train = {{ {pool} = [{TRAIN}] }}\n"
    )


def states(service: Service) -> dict[str, str]:
    reply = service.live._call("ListNodes", service_pb2.ListNodesRequest())
    return {node.node_id: node.state for node in reply.nodes}


def test_a_job_trains_on_a_ray_node(tmp_path: Path, tiny_model: Path, ray: RayCluster) -> None:
    with Service(tmp_path, nodes={}, extra=on_ray(ray)) as service:
        ray.add("one", pool="both")
        wait_until(lambda: states(service) == {"one": "up"}, what="the node is up")
        with service.live.connect() as connection, connection.job("first") as job:
            actor = train(job, "actor", tiny_model, plex.Parallel())
            assert {block.node_id for block in actor.info.blocks} == {"one"}
