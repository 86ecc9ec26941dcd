"""A service that is killed while a deployment moves, or with the node or the controller of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from plexclient.wire.v1 import worker_pb2, worker_pb2_grpc
from plexsvc.node import found
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.live_cluster import TRAIN, Service, processes
from tests.rigs.processes import descendants
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program
from tests.system.test_durable_nodes import three_steps

pytestmark = [pytest.mark.process, pytest.mark.slow]

STAGES = ["spawning", "waiting", "carrying", "restoring", "done"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    """Two nodes with a training device each, and the log of their service."""
    directory = tmp_path_factory.mktemp("pair")
    with Service(directory, nodes={"left": [TRAIN], "right": [TRAIN]}) as service:
        yield service, directory / "up.log"


@pytest.fixture(scope="module")
def undisturbed(pair: tuple[Service, Path], tiny_model: Path) -> dict[str, str]:
    """The digests of two steps where nothing moves."""
    with pair[0].live.connect() as connection, connection.job("alone") as job:
        actor = deploy(job, tiny_model)
        for _ in Program(actor, 3, steps=2).operations():
            pass
        return actor.digest()


def deploy(job: plex.Job, model: Path, *, durability: str = "none") -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        seed=3,
        durability=durability,
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_deployment_on_the_way_arrives_with_its_bits(
    pair: tuple[Service, Path], tiny_model: Path, undisturbed: dict[str, str], stage: str
) -> None:
    service, log = pair
    with service.live.connect() as connection, connection.job("moves") as job:
        actor = deploy(job, tiny_model)
        (before,) = where(service, actor)
        turns = Program(actor, 3, steps=2).operations()
        next(turns)  # its gradients keep it where it is until it has made a step
        seen = log.stat().st_size
        service.live.move_job(job.job_id)
        if stage in STAGES[2:]:
            next(turns)
            next(turns)
        wait_until(
            lambda: f"stage={stage}" in log.read_bytes()[seen:].decode(), what=f"it is {stage}"
        )
        service.kill()
        service.start()
        for _ in turns:
            pass
        assert actor.digest() == undisturbed
        wait_until(lambda: where(service, actor) not in ([before], []), what="it has arrived")
        assert actor.digest() == undisturbed
    assert {job.reason for job in service.live.jobs().values()} == {""}
    wait_until(lambda: not held(service), what="no copy is left")


@pytest.mark.every(2)
@pytest.mark.parametrize("said", ["node agent died", "deployment lost"])
def test_a_durable_deployment_whose_node_and_service_die_goes_on_with_its_bits(
    pair: tuple[Service, Path], tiny_model: Path, said: str
) -> None:
    service, log = pair
    wait_until(lambda: len(service.live.status().nodes) == 2, what="both nodes are there")

    def train(name: str, *, is_hit: bool) -> tuple[list[Any], Any]:
        with connection.job(name) as job:
            actor = deploy(job, tiny_model, durability="step" if is_hit else "none")
            calls = three_steps(actor)
            answers = [call() for call in calls[:3]]
            if is_hit:
                answers[-1].result()
                wait_until(lambda: "; if its node is lost" in rebuilt_from(), what="a second copy")
            answers += [call() for call in calls[3:5]]
            if is_hit:
                seen = log.stat().st_size
                (home,) = where(service, actor)
                kill_agent(service, home)
                wait_until(lambda: said in log.read_bytes()[seen:].decode(), what=said)
                service.kill()
                service.start()
            answers += [call() for call in calls[5:]]
            return [one.result(120).metrics for one in answers], actor.digest()

    def rebuilt_from() -> str:
        (job,) = [
            one for one in service.live.jobs().values() if one.name == "hit" and not one.ended_us
        ]
        return service.live.explain(job.job_id)

    with service.live.connect() as connection:
        assert train("hit", is_hit=True) == train("alone", is_hit=False)


CONTROLLER = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import plexclient as plex
from tests.rigs.workloads import PPO_ARGS, fixed_batch

model, place, durability, waits = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
with plex.connect() as cluster, cluster.job("both-die", resume=True) as job:
    actor = job.deploy(
        "actor", model=model, backend="megatron", optimizer=plex.AdamW(lr=1e-2), seed=3,
        durability=durability,
    )
    for step in range(actor.position or 0, 2):
        for part in range(2):
            batch = fixed_batch(3000 + 2 * step + part, sequences=6, longest=24)
            actor.forward_backward(batch, loss="ppo", **PPO_ARGS)
        if waits == "yes" and step == 1:
            (place / "here").touch()
            while not (place / "go").exists():
                time.sleep(0.05)
        actor.step(lr=1e-2, position=step + 1)
    (place / "digest").write_text(json.dumps(actor.digest()))
"""


@pytest.mark.parametrize(
    ("durability", "is_applied"), [("none", True), ("none", False), ("step", True)]
)
def test_a_step_that_runs_as_service_and_controller_die_is_made_once(
    pair: tuple[Service, Path],
    tiny_model: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    durability: str,
    is_applied: bool,
) -> None:
    service, _ = pair
    wait_until(lambda: len(service.live.status().nodes) == 2, what="both nodes are there")
    script = tmp_path / "controller.py"
    script.write_text(CONTROLLER.format(root=str(Path(__file__).parents[2])))

    def controller(waits: str) -> subprocess.Popen[bytes]:
        where = f"PLEX_ADDRESS={service.live.address}", f"PLEX_TOKEN={service.live.token}"
        arguments = str(tiny_model), str(tmp_path), durability, waits
        return subprocess.Popen(["env", *where, sys.executable, str(script), *arguments])

    first = controller("yes")
    wait_until((tmp_path / "here").exists, what="it is about to make its second step")
    (job,) = [one for one in service.live.jobs().values() if not one.ended_us]
    (deployment,) = [d for d in service.live.status().deployments if job.job_id in d.deployment_id]
    (rank,) = [one for one in processes(service.live) if one.wpg_id == deployment.wpg_id]
    before = applied_seq(service, rank.address)
    os.kill(rank.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_until(lambda: "runs step" in service.live.explain(job.job_id), what="the step runs")
    if is_applied:
        os.kill(service.process.pid, signal.SIGSTOP)  # the rank's answer finds nobody
        os.kill(rank.pid, signal.SIGCONT)
        wait_until(lambda: applied_seq(service, rank.address) > before, what="the step is made")
    first.kill()
    first.wait(timeout=120)
    service.kill()
    os.kill(rank.pid, signal.SIGCONT)
    service.start()
    assert controller("no").wait(timeout=120) == 0
    assert json.loads((tmp_path / "digest").read_text()) == undisturbed


def applied_seq(service: Service, address: str) -> int:
    """Return the number of the last operation that a rank applied."""
    with open_blocking_channel(address, service.live.keys) as channel:
        request = worker_pb2.DescribeRequest()
        return worker_pb2_grpc.WorkerStub(channel).Describe(request, timeout=120).applied_seq


def kill_agent(service: Service, node_id: str) -> None:
    """Kill -9 a node's agent and all that it runs."""
    agents = {agent.node_id: agent.pid for agent in found.find_all(service.live.state_dir)}
    for pid in [agents[node_id], *descendants(agents[node_id])]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def where(service: Service, actor: plex.Actor) -> list[str]:
    """Return the nodes of a deployment."""
    found = service.live.status().deployments
    return [b.node_id for d in found if d.deployment_id == actor.deployment_id for b in d.blocks]


def held(service: Service) -> int:
    """Return the host memory that nodes hold."""
    return sum(node.host_bytes_used for node in service.live.status().nodes)
