"""`pip install plexclient` and nothing else: a machine without the service drives a cluster."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

import pytest

from tests.rigs.live_cluster import LiveCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

CLIENT: Final = Path(__file__).parents[2] / "client"
INSTALLED: Final = Path(sysconfig.get_path("purelib"))
LOOP: Final = """
import importlib.util, json, sys
import plexclient as plex

address, token, model = sys.argv[1:]
foreign = ("plexsvc", "torch", "transformers", "tokenizers", "vllm", "safetensors")
assert not any(map(importlib.util.find_spec, foreign)), "this environment has more than the client"
losses = []
with plex.connect(address, token=token) as cluster, cluster.job("alone") as job:
    policy = plex.Declared(
        "actor", model=model, backend="megatron", optimizer=plex.AdamW(lr=1e-3),
        micro_batch_tokens=8192,
    )
    engine = plex.Declared("rollout", model=policy, backend="vllm", max_model_len=128)
    actor, rollout = job.deploy_all(policy, engine)
    for step in range(2):
        version = rollout.sync(actor)
        samples = rollout.generate([[5, 6, 7], [8, 9]], n=64, max_tokens=96, ignore_eos=True)
        advantages = plex.grpo_advantages([s.tokens[0] for s in samples], group=64)
        batch = plex.Batch.from_samples(samples, advantages=advantages)
        losses.append(float(actor.forward_backward(batch, loss="ppo")["loss"]))
        actor.step()
    scores = job.score("exact", ["4", "5"], references=["4", "4"])
    try:
        rollout.generate(["a text"], max_tokens=1)
    except plex.PlexError as error:
        refusal = str(error)
print(json.dumps({
    "tokens": sum(len(s.tokens) for s in samples), "uploaded": batch.target_tokens.nbytes,
    "losses": losses, "scores": [float(score) for score in scores], "refusal": refusal,
}))
"""


def needed(name: str) -> set[str]:
    """Return a distribution's dependencies without extras, and theirs, as metadata names them."""
    lines = importlib.metadata.requires(name) or []
    own = {
        found.group() for line in lines if (found := re.match(r"[\w-]+", line)) and ";" not in line
    }
    return own.union(*map(needed, own))


def build(directory: Path) -> Path:
    """Return the client's wheel."""
    source = shutil.copytree(
        CLIENT,
        directory / "client",
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"),
    )
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "-w", str(directory), str(source)], check=True, timeout=120)
    (wheel,) = directory.glob("plexclient-*.whl")
    return wheel


def environment(directory: Path) -> Path:
    """Return the Python of an environment that has the client's wheel and what it depends on."""
    venv.create(directory / "alone", with_pip=False, symlinks=True)
    python = directory / "alone" / "bin" / "python"
    (packages,) = (directory / "alone" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(packages), str(build(directory))], check=True, timeout=120)
    tops = {
        file.parts[0]
        for name in needed("plexclient")
        for file in importlib.metadata.files(name) or []
        if file.parts[0] != ".."
    }
    for top in tops:
        (packages / top).symlink_to(INSTALLED / top)
    return python


def test_a_machine_with_the_client_alone_runs_a_job_by_address_and_token(
    tmp_path: Path, cluster: LiveCluster, tiny_model: Path
) -> None:
    command = [str(environment(tmp_path)), "-I", "-c", LOOP]
    done = subprocess.run(
        [*command, cluster.address, cluster.token, str(tiny_model)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tokens"] == 2 * 64 * 96
    assert told["uploaded"] > 1 << 15, "with its other arrays it does not travel in the operation"
    assert len(set(told["losses"])) == 2
    assert told["scores"] == [1.0, 0.0]
    assert "plexclient[tokenizer]" in told["refusal"]
