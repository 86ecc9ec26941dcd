"""Jobs whose controllers are killed and started again end with the bits they would have had."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

STEPS = 4

CONTROLLER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
import plexclient as plex
from tests.rigs.workloads import fixed_batch

model, place, dies_at, resumes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with plex.connect() as cluster, cluster.job("train", resume=resumes == "yes") as job:
    actor = job.deploy(
        "actor", model=model, backend="megatron", optimizer=plex.AdamW(lr=1e-2),
        micro_batch_tokens=64,
    )
    done = actor.position or 0
    with (place / "runs").open("a") as file:
        file.write(f"{{done}} ")
    for number in range(done + 1, {steps} + 1):
        first = actor.forward_backward.submit(fixed_batch(2 * number), loss="ppo")
        if number == dies_at and not done:
            first.result()
            actor.forward_backward.submit(fixed_batch(99), loss="ppo")
            os.kill(os.getpid(), signal.SIGKILL)
        actor.forward_backward(fixed_batch(2 * number + 1), loss="ppo")
        actor.step(position=number)
    (place / "digest").write_text(str(sorted(actor.digest().items())))
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A controller that trains, and may kill itself inside a step."""
    script = tmp_path_factory.mktemp("controller") / "train.py"
    root = str(Path(__file__).parents[2])
    script.write_text(CONTROLLER.format(root=root, steps=STEPS))
    return script


@pytest.fixture(scope="module")
def undisturbed(
    cluster: LiveCluster,
    controller: Path,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """What the training comes to where nobody dies."""
    place = tmp_path_factory.mktemp("undisturbed")
    assert run(cluster, controller, str(tiny_model), str(place), "0", "no") == 0
    return (place / "digest").read_text()


def run(cluster: LiveCluster, controller: Path, *arguments: str) -> int:
    command = [
        "env",
        f"PLEX_ADDRESS={cluster.address}",
        f"PLEX_TOKEN={cluster.token}",
        sys.executable,
    ]
    return subprocess.run([*command, controller, *arguments], check=False).returncode


def test_a_controller_that_died_is_started_again_and_goes_on(
    cluster: LiveCluster, controller: Path, tiny_model: Path, tmp_path: Path, undisturbed: str
) -> None:
    command = [sys.executable, "-m", "plexsvc.cli.main", "submit", "--attach", "--restarts", "1"]
    where = [
        "--address",
        cluster.address,
        "--token",
        cluster.token,
        "--state-dir",
        str(cluster.state_dir),
    ]
    script = [str(controller), str(tiny_model), str(tmp_path), "3", "no"]
    subprocess.run([*command, *where, *script], check=True, timeout=170)
    assert (tmp_path / "runs").read_text() == "0 2 "
    assert (tmp_path / "digest").read_text() == undisturbed


def test_a_job_is_resumed_by_its_name_once_its_controller_is_gone(
    cluster: LiveCluster, controller: Path, tiny_model: Path, tmp_path: Path, undisturbed: str
) -> None:
    died = run(cluster, controller, str(tiny_model), str(tmp_path), "2", "yes")
    assert died == -signal.SIGKILL
    assert run(cluster, controller, str(tiny_model), str(tmp_path), "0", "yes") == 0
    assert (tmp_path / "runs").read_text() == "0 1 "
    assert (tmp_path / "digest").read_text() == undisturbed


def test_a_name_that_still_runs_is_refused(cluster: LiveCluster) -> None:
    with (
        cluster.connect() as first,
        first.job("lives") as job,
        cluster.connect() as second,
        pytest.raises(plex.PlexError, match=rf"'lives' \({job.job_id}\) still runs"),
    ):
        second.job("lives", resume=True).__enter__()
