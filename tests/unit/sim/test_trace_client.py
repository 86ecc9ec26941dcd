"""A trace's job as a client: what it asks for, and what it does when a node is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind
from plexsvc.sim.books import Books
from plexsvc.sim.clients import Reply, What
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.hosts import ParkingRoom
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.nodes import Nodes
from plexsvc.sim.records import Record
from plexsvc.sim.trace_client import TraceClient, deal
from plexsvc.sim.trace_costs import TraceCosts
from plexsvc.sim.virtual_driver import VirtualDriver
from tests.rigs.traces import job

LOST = Fault(code=ErrorCode.NODE_LOST, message="gone")


def played(one: SimJob) -> tuple[TraceClient, VirtualDriver]:
    """Return a job's client after the job has ended."""
    core = Scheduler(limits=Limits(), epoch=1)
    cluster = SimCluster(nodes=2)
    books = Books(
        view=core.view, cluster=cluster, memory=ParkingRoom(host_bytes=cluster.host_bytes)
    )
    costs = TraceCosts(cluster=cluster, seed=1, books=books)
    nodes = Nodes(cluster=cluster, seed=1, num_rollouts=1, has_hope=lambda: True)
    client = TraceClient(
        record=Record(job=one, alone_us=one.alone(one.rollout_us(1)).took_us, work_us=0),
        seed=1,
        nodes=nodes,
        costs=costs,
        books=books,
    )
    driver = VirtualDriver(core=core, costs=costs, clients=[nodes, client], watch=books.watch)
    assert driver.run()
    return client, driver


def test_a_node_that_is_lost_when_all_is_trained_does_not_bring_the_job_back() -> None:
    client, driver = played(job("j", cycles=2))
    failed = Reply(what=What.READY, subject=DeploymentId("j/actor"), fault=LOST)
    assert client.told(failed, now_us=driver.now_us) == ()
    assert client.is_done
    assert client.record.restarts == []


@pytest.mark.parametrize(
    ("durations", "deployments", "expected"),
    [
        ((5,), 1, [[OperationKind.STEP]]),
        ((5, 5), 2, [[OperationKind.STEP], [OperationKind.STEP]]),
        (
            (5, 5, 5),
            1,
            [[OperationKind.FORWARD, OperationKind.FORWARD_BACKWARD, OperationKind.STEP]],
        ),
        (
            (5, 5, 5),
            2,
            [[OperationKind.FORWARD, OperationKind.STEP], [OperationKind.STEP]],
        ),
    ],
)
def test_the_last_phase_of_each_deployment_is_its_step(
    durations: tuple[int, ...], deployments: int, expected: list[list[OperationKind]]
) -> None:
    one = replace(job("j", durations=durations), deployments=deployments)
    assert [list(kinds.values()) for kinds in deal(one).values()] == expected
