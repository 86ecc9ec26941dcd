"""Instances that a generate leaves before its end, on real engines; the service may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import plexclient as plex
from benchmarks import padded_engines
from tests.rigs.live_cluster import ROLLOUT, SHARES_ALL, Service
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

CUTS = "[rollout]\ncuts_at = 0.5\nbalance_us = 50_000\n"
PROMPTS = [[3, 4, 12, 5, 16], [7, 8, 9]]
OPTIONS = plex.SamplingOptions(n=2, max_tokens=64, temperature=1.0, seed=7, ignore_eos=True)
LONG = [[3 + number, 4, 12, 5] for number in range(8)]
TAIL = plex.SamplingOptions(max_tokens=400, seed=7, ignore_eos=True, stop_token_ids=[2])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two devices for instances, whose steps take 30 ms."""
    place = tmp_path_factory.mktemp("cuts")
    with pytest.MonkeyPatch.context() as patch:
        for name in padded_engines.VARIABLES:
            patch.setenv(name, "")  # put back at the end
        padded_engines.install(place, step_ms=30)
        nodes = {"node-a": [ROLLOUT, ROLLOUT]}
        with Service(place, nodes=nodes, scheduler=SHARES_ALL + CUTS) as running:
            yield running


def deploy(job: plex.Job, model: Path, instances: int | plex.Elastic) -> plex.Rollout:
    rollout: plex.Rollout = job.deploy(
        "rollout", model=str(model), backend="vllm", instances=instances, max_model_len=512
    )
    return rollout


@pytest.fixture(scope="module")
def undisturbed(service: Service, tiny_model: Path) -> list[list[int]]:
    """The tokens that one instance makes."""
    with service.live.connect() as connection, connection.job("alone") as job:
        samples = deploy(job, tiny_model, 1).generate(LONG, **TAIL)
    return [one.tokens for one in samples]


def test_tokens_are_the_same_where_an_instance_is_cut(
    service: Service, tiny_model: Path, undisturbed: list[list[int]]
) -> None:
    with service.live.connect() as connection, connection.job("cuts") as job:
        cut = deploy(job, tiny_model, 2).generate(LONG, **TAIL)
    assert [one.tokens for one in cut] == undisturbed
    took_s = cut.num_tokens / cut.metrics["tokens_per_s"]
    assert cut.metrics["instance_s"] < 2 * took_s, "one of the two was left before the end"


def test_a_generate_goes_on_through_a_kill_whose_other_instance_sleeps_for_another_job(
    service: Service, tiny_model: Path, undisturbed: list[list[int]]
) -> None:
    with service.live.connect() as connection, ExitStack() as stack:
        long, *others = (
            deploy(
                stack.enter_context(connection.job(name)),
                tiny_model,
                plex.Elastic(dedicated=instances, shared=True),
            )
            for name, instances in (("long", 2), ("left", 1), ("right", 1))
        )
        short = [one.generate(PROMPTS, **OPTIONS) for one in others]

        def left() -> int:
            """Return how often devices were used to generate, until they were left."""
            spans = service.live.timeline()
            mine = [one for one in spans if one.deployment_id == long.deployment_id]
            return sum(one.kind == "generate" for one in mine)

        tail = long.generate.stream(LONG, **TAIL)
        first, before = next(tail), left()
        handles = [one.generate.submit(PROMPTS, **OPTIONS) for one in others]
        wait_until(
            lambda: any(handle.done() for handle in handles),
            what="another job has generated on the device that an instance has left",
        )
        # The first sample may be told after one of the two instances was left.
        assert left() in {before, before + 1}, "the other one is in use"
        service.kill()
        service.start()
        again = sorted([first, *tail], key=lambda one: one.prompt_index)
        assert [one.tokens for one in again] == undisturbed
        for handle, found in zip(handles, short, strict=True):
            assert [one.tokens for one in handle.result()] == [one.tokens for one in found]
        assert [one.tokens for one in long.generate(LONG, **TAIL)] == undisturbed
        assert {job.reason for job in service.live.jobs().values()} == {""}
