"""A service that is killed comes back, adopts what runs, and its jobs go on with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import plexclient as plex
from plexsvc.errors import ErrorCode
from tests.rigs.another_node import another_node
from tests.rigs.live_cluster import ROLLOUT, TRAIN, Service, rank_processes
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("killed"), nodes={"only": [TRAIN, ROLLOUT]}) as running:
        yield running


def deploy(job: plex.Job, model: Path, *, seed: int, durability: str = "none") -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        seed=seed,
        micro_batch_tokens=64,
        durability=durability,
    )


def test_a_job_goes_on_bit_for_bit_when_its_service_ends_between_operations(
    service: Service, tiny_model: Path
) -> None:
    ends = {1: Service.kill, 2: Service.leave, 5: Service.kill}
    with service.live.connect() as connection:
        with connection.job("alone") as job:
            alone = deploy(job, tiny_model, seed=3)
            for _ in Program(alone, 3).operations():
                pass
            expected = alone.digest()
        with connection.job("restarted") as job:
            actor = deploy(job, tiny_model, seed=3)
            for done, _ in enumerate(Program(actor, 3).operations()):
                if done in ends:
                    ends[done](service)
                    service.start()
            assert actor.digest() == expected
        assert service.live.jobs()[job.job_id].reason == ""


@pytest.mark.parametrize("killed_after", [1, 2], ids=["passes", "step"])
def test_a_durable_job_loses_its_service_and_then_its_rank(
    service: Service, tiny_model: Path, killed_after: int
) -> None:
    digests = []
    for is_disturbed in (False, True):
        with service.live.connect() as connection, connection.job("any") as job:
            actor = deploy(job, tiny_model, seed=3, durability="step")
            for done, _ in enumerate(Program(actor, 3, steps=2).operations()):
                if is_disturbed and done == killed_after:
                    service.kill()
                    service.start()
                    wait_until(
                        lambda: "can be rebuilt" in service.live.explain(job.job_id),
                        what="its state is kept",
                    )
                    os.kill(rank_processes(service.live, [actor.deployment_id])[0], signal.SIGKILL)
            digests.append(actor.digest())
    assert digests[0] == digests[1]


def test_a_rank_that_died_meanwhile_ends_its_deployment_with_that_cause_and_no_other(
    service: Service, tiny_model: Path
) -> None:
    with (
        service.live.connect() as connection,
        connection.job("dies") as first,
        connection.job("lives") as second,
    ):
        dying, living = deploy(first, tiny_model, seed=1), deploy(second, tiny_model, seed=2)
        (rank,) = rank_processes(service.live, [dying.deployment_id])
        service.kill()
        os.kill(rank, signal.SIGKILL)
        service.start()
        with pytest.raises(plex.PlexError, match="died with") as failed:
            dying.zero_grad()
        assert failed.value.code in {ErrorCode.DEPLOYMENT_FAILED, ErrorCode.WORKER_DIED}
        living.zero_grad()


def test_a_job_goes_on_to_train_publish_and_generate(service: Service, tiny_model: Path) -> None:
    with service.live.connect() as connection, connection.job("loop") as job:
        actor = deploy(job, tiny_model, seed=4)
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=128)
        rollout.sync(actor)
        before = rollout.generate(["2+2="], n=2, max_tokens=8, temperature=0.0)
        service.kill()
        service.start()
        again = rollout.generate(["2+2="], n=2, max_tokens=8, temperature=0.0)
        assert [sample.tokens for sample in again] == [sample.tokens for sample in before]
        for _ in Program(actor, 4, steps=1).operations():
            pass
        long = rollout.generate.submit(["2+2="], n=4, max_tokens=100, temperature=1.0)
        service.kill()
        service.start()
        assert len(long.result()) == 4
        rollout.sync(actor)
        after = rollout.generate(["2+2="], n=1, max_tokens=8)
        assert after[0].versions != before[0].versions
    assert service.live.jobs()[job.job_id].reason == ""


def test_a_job_whose_instance_died_meanwhile_gets_a_new_one(
    service: Service, tiny_model: Path
) -> None:
    with service.live.connect() as connection, connection.job("samples") as job:
        rollout = job.deploy("rollout", model=str(tiny_model), backend="vllm", role="rollout")
        (instance,) = rank_processes(service.live, [rollout.deployment_id])
        service.kill()
        os.kill(instance, signal.SIGKILL)
        service.start()
        assert len(rollout.generate(["2+2="], n=2, max_tokens=4)) == 2
        assert rank_processes(service.live, [rollout.deployment_id]) != [instance]
        service.kill()  # what the job's managers know of it is the new instance
        service.start()
        assert len(rollout.generate(["2+2="], n=2, max_tokens=4)) == 2


def test_a_node_that_was_added_is_known_to_the_next_service(
    service: Service, tmp_path: Path, tiny_model: Path
) -> None:
    """The last test here: the node goes, and stays lost."""
    with another_node(service.live, tmp_path, node_id="extra", device=TRAIN) as address:
        plexctl = [sys.executable, "-m", "plexsvc.cli.main", "node", "add", address]
        state_dir = str(service.live.state_dir)
        subprocess.run([*plexctl, "--state-dir", state_dir], check=True, timeout=120)
        with service.live.connect() as connection, ExitStack() as stack:
            jobs = [stack.enter_context(connection.job(name)) for name in ("here", "there")]
            actors = [deploy(job, tiny_model, seed=5) for job in jobs]
            assert {b.node_id for a in actors for b in a.info.blocks} == {"only", "extra"}
            before = [actor.digest() for actor in actors]
            service.kill()
            service.start()
            assert [actor.digest() for actor in actors] == before
