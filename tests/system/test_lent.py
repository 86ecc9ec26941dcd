"""Serving engines that lend: a job samples the same tokens beside their traffic, whatever goes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

import plexclient as plex
from plexclient.wire.v1 import service_pb2
from plexsvc.rollout.serving.control import ask
from tests.rigs.lent_engine import ServedEngine, served
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.spot_cluster import PROMPTS, change_instance, tokens
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

OPTIONS = plex.SamplingOptions(n=4, max_tokens=200, temperature=1.0, seed=7, ignore_eos=True)
DEVICE = "serving/chat"
LOOK_S = 0.02
"""How often it is looked whether the guest samples: all share the processors."""


def lent(cluster: LiveCluster) -> service_pb2.InstanceView:
    """Return the lent engine as the cluster sees it; nothing without one."""
    return cluster.instances().get(DEVICE, service_pb2.InstanceView())


def wait_for(cluster: LiveCluster, *phases: str) -> None:
    wait_until(lambda: lent(cluster).phase in phases, what=f"{DEVICE} is {phases}")


@contextmanager
def traffic(engine: ServedEngine) -> Iterator[list[str]]:
    """Ask the engine while the block runs, one by one; yield its answers, which must be equal."""
    client = openai.OpenAI(base_url=engine.address, api_key="none", max_retries=0)
    asked: Any = {"model": "chat", "prompt": "1+2=", "max_tokens": 8, "temperature": 0}
    answers: list[str] = []
    failures: list[Exception] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                reply: Any = client.completions.create(**asked, extra_body={"ignore_eos": True})
            except openai.OpenAIError as error:
                failures.append(error)
                return
            answers.append(reply.choices[0].text)
            over.wait(LOOK_S)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield answers
    finally:
        over.set()
        asking.join()
    assert not failures
    assert len(set(answers)) == 1, "what is served does not depend on the guest"


def sampled_while(
    cluster: LiveCluster, rollout: plex.Rollout, act: Callable[[], Any]
) -> plex.Samples:
    """Sample, act when the guest is in the middle of it, and return what came.

    A generate that ends before the guest had a step of it is made again.
    """
    wait_for(cluster, "serving")
    while True:
        under_way = rollout.generate.submit(PROMPTS, **OPTIONS)
        while wait([under_way], LOOK_S).not_done:
            if lent(cluster).running > 0:
                act()
                return under_way.result()
        under_way.result()


def test_a_job_has_a_lent_engine_as_an_instance_until_its_owner_takes_it_back(
    cluster: LiveCluster, tmp_path: Path, tiny_model: Path
) -> None:
    make_qwen3(tmp_path / "chat", seed=1)
    with cluster.connect() as connection:
        lending = ("--lend", "--lend-model", str(tiny_model), "--cluster", str(cluster.state_dir))
        with connection.job("borrower") as job:
            actor = job.deploy(
                "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
            )
            rollout = job.deploy(
                "rollout",
                model=actor,
                backend="vllm",
                max_model_len=512,
                instances=plex.Elastic(dedicated=1, serving=(0, 4)),
            )
            actor.forward_backward(fixed_batch(1), loss="ppo")
            actor.step()
            version = rollout.sync(actor)
            expected = tokens(rollout.generate(PROMPTS, **OPTIONS))

            def generate_while(act: Callable[[], Any]) -> None:
                samples = sampled_while(cluster, rollout, act)
                assert tokens(samples) == expected
                assert {v for one in samples for v in one.versions} == {version}

            with served(tmp_path, *lending, "--max-model-len", "512") as engine:
                generate_while(lambda: None)
                assert lent(cluster).version == version, "it pulled that by itself"
                assert engine.plexctl("serve", "report", "chat")["harvested_tokens"] > 0
                with traffic(engine) as answers:
                    taken: dict[str, Any] = {}
                    generate_while(lambda: taken.update(asyncio.run(ask(engine.socket, "reclaim"))))
                    assert taken["left_bytes"] < 1 << 20, "resident, whatever was lent"
                    wait_until(lambda: not lent(cluster).deployment_id, what="it is left")
                    engine.plexctl("instance", "lend", "chat")
                    generate_while(lambda: cluster.drain_instance(DEVICE))
                    wait_for(cluster, "closed")
                    change_instance(cluster, "open", DEVICE)
                    wait_for(cluster, "serving")
                assert len(answers) > 10, "traffic went on meanwhile"
                generate_while(engine.process.kill)
                assert tokens(rollout.generate(PROMPTS, **OPTIONS)) == expected


def until_lent(cluster: LiveCluster, rollout: plex.Rollout) -> Iterator[plex.Samples]:
    """Generate again and again until the guest has samples of it; yield what came."""
    is_lent = False
    deadline = time.monotonic() + 200
    while not is_lent:
        assert time.monotonic() < deadline, "the guest never samples for it"
        under_way = rollout.generate.submit(PROMPTS, **OPTIONS)
        while wait([under_way], LOOK_S).not_done:
            view = lent(cluster)
            is_lent |= view.deployment_id == rollout.deployment_id and view.running > 0
        yield under_way.result()


def test_one_lent_engine_serves_jobs_in_turn_each_by_its_own_weights(
    cluster: LiveCluster, tmp_path: Path, tiny_model: Path
) -> None:
    with cluster.connect() as connection, ExitStack() as stack:
        jobs = [stack.enter_context(connection.job(name)) for name in ("lent-one", "lent-two")]
        rollouts, versions = [], []
        elastic = plex.Elastic(dedicated=1, serving=(0, 1))
        for number, job in enumerate(jobs):
            actor = job.deploy(
                "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
            )
            rollout = job.deploy(
                "rollout", model=actor, backend="vllm", max_model_len=512, instances=elastic
            )
            actor.forward_backward(fixed_batch(number), loss="ppo")
            actor.step()
            versions.append(rollout.sync(actor))
            rollouts.append(rollout)
        plain = stack.enter_context(connection.job("plain"))
        rollouts.append(
            plain.deploy(
                "rollout",
                model=str(tiny_model),
                backend="vllm",
                max_model_len=512,
                instances=elastic,
            )
        )
        versions.append(0)  # of the model's directory
        expected = [tokens(rollout.generate(PROMPTS, **OPTIONS)) for rollout in rollouts]
        assert len({str(one) for one in expected}) == 3, "they have other weights"
        make_qwen3(tmp_path / "chat", seed=1)
        lending = ("--lend", "--lend-model", str(tiny_model), "--cluster", str(cluster.state_dir))
        with served(tmp_path, *lending, "--max-model-len", "512"):
            for turn in (0, 1, 2, 0):
                for samples in until_lent(cluster, rollouts[turn]):
                    assert tokens(samples) == expected[turn]
                    assert {v for one in samples for v in one.versions} == {versions[turn]}
        wait_for(cluster, "", "free")


def test_guests_of_several_models_serve_jobs_beside_each_other(
    cluster: LiveCluster, tmp_path: Path, tiny_model: Path
) -> None:
    other = make_qwen3(tmp_path / "other", seed=5, layers=3)
    models = {f"chat.{model.name}": model for model in (tiny_model, other)}
    with cluster.connect() as connection, ExitStack() as stack:
        rollouts = {
            name: stack.enter_context(connection.job(name)).deploy(
                "rollout",
                model=str(model),
                backend="vllm",
                max_model_len=512,
                instances=plex.Elastic(dedicated=1, serving=(0, 1)),
            )
            for name, model in models.items()
        }
        expected = {
            name: tokens(one.generate(PROMPTS, **OPTIONS)) for name, one in rollouts.items()
        }
        make_qwen3(tmp_path / "chat", seed=1)
        lending = ["--lend", "--cluster", str(cluster.state_dir), "--max-model-len", "512"]
        for model in models.values():
            lending += ["--lend-model", str(model)]
        with served(tmp_path, *lending) as engine, traffic(engine) as answers:
            have_sampled: set[str] = set()
            deadline = time.monotonic() + 200
            while have_sampled != set(models):
                assert time.monotonic() < deadline, f"only {have_sampled} of {set(models)} sample"
                calls = {n: one.generate.submit(PROMPTS, **OPTIONS) for n, one in rollouts.items()}
                while wait(calls.values(), LOOK_S).not_done:
                    views = cluster.instances()
                    for name in models:
                        view = views.get(f"serving/{name}", service_pb2.InstanceView())
                        if view.running > 0:
                            assert view.deployment_id == rollouts[name].deployment_id
                            have_sampled.add(name)
                for name, call in calls.items():
                    assert tokens(call.result()) == expected[name]
            report = engine.plexctl("serve", "report", "chat")
            assert {one["name"] for one in report["guests"] if one["tokens"]} == set(models)
        assert answers
