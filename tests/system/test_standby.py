"""Two services on one PostgreSQL: the second waits, and goes on when the first dies or freezes."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import plexclient as plex
from plexsvc.cluster.places import keys_file
from tests.rigs.another_node import another_node
from tests.rigs.live_cluster import TRAIN, Service, state_beside
from tests.rigs.postgres import Postgres, running_postgres
from tests.rigs.workloads import Program

pytestmark = [pytest.mark.process, pytest.mark.slow]

SLOTS = '{ kind = "reward", cpus = 2, bytes_total = 4_294_967_296 }'
"""A device of nodes that only have to be there: they import no framework."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def service(postgres: Postgres, home: Path) -> Iterator[Service]:
    extra = f'database = "{postgres.create("home")}"\n'
    with Service(home, nodes={"only": [TRAIN]}, extra=extra) as running:
        yield running


def deploy(job: plex.Job, model: Path) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        optimizer=plex.AdamW(lr=1e-2),
        seed=3,
        micro_batch_tokens=64,
    )


def test_a_job_goes_on_bit_for_bit_when_its_leader_is_killed_or_stands_still(
    service: Service, tiny_model: Path
) -> None:
    def freeze(led: Service) -> None:
        led.process.send_signal(signal.SIGSTOP)

    ends = {1: Service.kill, 3: freeze}
    with service.live.connect() as connection:
        with connection.job("alone") as job:
            alone = deploy(job, tiny_model)
            for _ in Program(alone, 3).operations():
                pass
            expected = alone.digest()
        with connection.job("led-by-three") as job:
            actor = deploy(job, tiny_model)
            for done, _ in enumerate(Program(actor, 3).operations()):
                if done in ends:
                    service.stand_by()
                    leader = service.process
                    ends[done](service)
                    service.succeed()
                    # One that stands still is ended by its successor.
                    assert leader.wait(timeout=120) == -signal.SIGKILL
            assert actor.digest() == expected
        assert service.live.jobs()[job.job_id].reason == ""


def test_a_job_goes_on_bit_for_bit_when_its_database_dies_and_comes_back(
    service: Service, postgres: Postgres, tiny_model: Path
) -> None:
    with service.live.connect() as connection:
        with connection.job("alone") as job:
            alone = deploy(job, tiny_model)
            for _ in Program(alone, 3).operations():
                pass
            expected = alone.digest()
        with connection.job("without-a-database") as job, ThreadPoolExecutor(1) as thread:
            actor = deploy(job, tiny_model)
            back = []
            for done, _ in enumerate(Program(actor, 3).operations()):
                if done in {1, 3}:
                    postgres.stop()  # as a crash: what was not committed is lost
                    back.append(thread.submit(postgres.restart))
            assert actor.digest() == expected
            assert [one.result() for one in back] == [None, None]
        assert service.live.jobs()[job.job_id].reason == ""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_leader_that_wakes_after_it_was_replaced_changes_nothing(
    postgres: Postgres, tmp_path: Path, tiny_model: Path
) -> None:
    """Each has a state directory of its own, as on two hosts; the node that trains is neither's."""
    url = postgres.create("homes")
    extra = f'database = "{url}"\ntokens = {{ "a-long-secret" = "default" }}\n'
    homes = [tmp_path / name for name in ("one", "two", "node")]
    for home in homes:
        home.mkdir()
    first, second = (Service(home, nodes={home.name: [SLOTS]}, extra=extra) for home in homes[:2])
    later = f"127.0.0.1:{free_port()}"
    config = homes[1] / "cluster.toml"
    text = config.read_text().replace('\nlisten = "127.0.0.1:0"', f'\nlisten = "{later}"')
    config.write_text(text)
    with (
        closing_standbys(second),
        first,
        another_node(first.live, homes[2], node_id="extra", device=TRAIN) as address,
    ):
        shutil.copy(keys_file(first.live.state_dir), keys_file(state_beside(homes[1])))
        add = [sys.executable, "-m", "plexsvc.cli.main", "node", "add", address]
        state_dir = str(first.live.state_dir)
        subprocess.run([*add, "--state-dir", state_dir], check=True, timeout=120)
        addresses = f"{first.live.address},{later}"
        with plex.connect(addresses, token="a-long-secret") as connection:
            with connection.job("alone") as job:
                alone = deploy(job, tiny_model)
                for _ in Program(alone, 3).operations():
                    pass
                expected = alone.digest()
            with connection.job("led-by-two") as job:
                actor = deploy(job, tiny_model)
                for done, _ in enumerate(Program(actor, 3).operations()):
                    if done == 2:
                        second.stand_by()
                        first.process.send_signal(signal.SIGSTOP)
                        second.succeed()
                    if done == 4:
                        first.process.send_signal(signal.SIGCONT)
                        assert first.process.wait(timeout=120) == 1
                assert actor.digest() == expected
            assert [j.reason for j in second.live.jobs().values()] == ["", ""]


@contextmanager
def closing_standbys(service: Service) -> Iterator[None]:
    """End a service that was only a standby first."""
    try:
        yield
    finally:
        service.__exit__()


def test_a_second_service_that_does_not_wait_says_who_leads(
    service: Service, home: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for more in ([], ["--state-dir", str(state_beside(elsewhere))]):
        command = [sys.executable, "-m", "plexsvc.cli.main", "up", "--config"]
        config = str(home / "cluster.toml")
        again = subprocess.run(
            [*command, config, *more], capture_output=True, text=True, timeout=90, check=False
        )
        assert again.returncode == 1
        assert f"pid {service.process.pid}) leads" in again.stderr, again.stderr
    assert service.live.status().nodes
