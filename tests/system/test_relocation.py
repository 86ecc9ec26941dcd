"""A live training deployment moves to other devices with the same bits, or stays with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.scheduler.core.vocabulary import RelocationStage
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.orders.reach import Reach
from tests.rigs.inner_cluster import Gate, InnerCluster, node, start_inner
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import Program, fill_other_devices, fixed_batch, run_interleaved

pytestmark = [pytest.mark.process, pytest.mark.slow]

ONE = plex.Parallel()
NODES = tuple(replace(node(name, train=2), address="127.0.0.1") for name in ("left", "right"))


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerCluster]:
    with start_inner(tmp_path_factory.mktemp("inner"), nodes=NODES) as running:
        yield running


def deploy(
    job: plex.Job,
    model: Path,
    *,
    backend: str = "megatron",
    parallel: plex.Parallel = ONE,
    lora: plex.LoRA | None = None,
    seed: int,
) -> plex.Actor:
    return job.deploy(
        "actor",
        model=str(model),
        backend=backend,
        parallel=parallel,
        lora=lora,
        optimizer=plex.AdamW(lr=1e-2),
        seed=seed,
        micro_batch_tokens=64,
    )


LEFT, RIGHT = (("left", 0), ("left", 1)), (("right", 0), ("right", 1))
SPREAD = (("right", 1), ("left", 0))


@pytest.mark.parametrize(
    ("backend", "parallel", "lora", "hops"),
    [
        ("megatron", ONE, None, [RIGHT[1:]]),
        ("megatron", plex.Parallel(tp=2), None, [RIGHT]),
        ("megatron", plex.Parallel(pp=2), None, [RIGHT]),
        ("megatron", plex.Parallel(dp=2), None, [SPREAD, LEFT]),
        ("megatron", plex.Parallel(tp=2), None, [SPREAD, LEFT]),
        ("fsdp", plex.Parallel(dp=2), None, [SPREAD, RIGHT]),
        ("fsdp", plex.Parallel(dp=2), plex.LoRA(rank=4), [SPREAD]),
    ],
    ids=["one", "tp2", "pp2", "dp2-spread", "tp2-spread", "fsdp2-spread", "lora-spread"],
)
def test_a_moved_deployment_ends_with_the_bits_it_would_have_had(
    inner: InnerCluster,
    tiny_model: Path,
    backend: str,
    parallel: plex.Parallel,
    lora: plex.LoRA | None,
    hops: list[tuple[tuple[str, int], ...]],
) -> None:
    with inner.connect() as connection:
        with connection.job("alone") as job:
            actor = deploy(job, tiny_model, backend=backend, parallel=parallel, lora=lora, seed=0)
            run_interleaved([Program(actor, 0)])
            alone = actor.digest()
        with connection.job("moved") as job:
            actor = deploy(job, tiny_model, backend=backend, parallel=parallel, lora=lora, seed=0)
            turns = Program(actor, 0).operations()
            for hop in hops:
                next(turns)
                inner.relocate(actor, *hop)
                next(turns)
                next(turns)
                assert inner.wait().stage is RelocationStage.DONE, inner.changes[-1]
                assert inner.places(actor) == hop
            for _ in turns:
                pass
            assert actor.digest() == alone


def test_state_is_streamed_to_a_node_that_cannot_map_it(
    inner: InnerCluster, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate, far = Reach.locate, list[str]()

    def far_away(reach: Reach, published: Published) -> statemanager_pb2.PublishedVersion:
        version = locate(reach, published)
        for holder in version.holders:
            holder.data_socket = ""  # as if the node were another host
            far.append(holder.node_id)
        return version

    monkeypatch.setattr(Reach, "locate", far_away)
    with inner.connect() as connection, connection.job("far") as job:
        actor = deploy(job, tiny_model, parallel=plex.Parallel(tp=2), seed=0)
        run_interleaved([Program(actor, 0, steps=1)])
        before = actor.digest()
        inner.relocate(actor, *RIGHT)
        assert inner.wait().stage is RelocationStage.DONE, inner.changes[-1]
        assert far
        assert actor.digest() == before


def test_state_on_several_nodes_is_digested_and_saved_like_on_one(
    inner: InnerCluster, tiny_model: Path, tmp_path: Path
) -> None:
    with inner.connect() as connection, connection.job("spread") as job:
        actor = deploy(job, tiny_model, parallel=plex.Parallel(tp=2), seed=0)
        run_interleaved([Program(actor, 0, steps=1)])
        alone = actor.digest()
        assert "grad" not in alone, "there are none after a step"
        inner.relocate(actor, *SPREAD)
        assert inner.wait().stage is RelocationStage.DONE
        actor.forward_backward(fixed_batch(9), loss="ppo")
        spread = actor.digest()
        assert spread.keys() - alone.keys() == {"grad"}
        assert {kind: spread[kind] for kind in alone} == alone
        actor.save(str(tmp_path / "saved"), optimizer=True)
        actor.export(str(tmp_path / "exported"))
        exported = {p.name for p in (tmp_path / "exported").iterdir()}
        assert {"model.safetensors.index.json", "config.json"} <= exported
        inner.relocate(actor, *LEFT)
        actor.load(str(tmp_path / "saved"), optimizer=True)
        assert inner.wait().stage is RelocationStage.DONE
        loaded = actor.digest()
        assert {kind: loaded[kind] for kind in alone} == alone


def test_a_neighbour_on_the_same_device_notices_nothing(
    inner: InnerCluster, tiny_model: Path
) -> None:
    with inner.connect() as connection:
        alone = []
        for seed in range(2):
            with connection.job("alone") as job:
                actor = deploy(job, tiny_model, seed=seed)
                run_interleaved([Program(actor, seed)])
                alone.append(actor.digest())
        with connection.job("fill") as fill, connection.job("a") as a, connection.job("b") as b:
            first = deploy(a, tiny_model, seed=0)
            fill_other_devices(fill, 3, model=tiny_model)
            second = deploy(b, tiny_model, seed=1)
            assert inner.places(first) == inner.places(second)
            programs = [Program(first, 0), Program(second, 1)]
            turns = [program.operations() for program in programs]
            for _ in range(4):
                for turn in turns:
                    next(turn)
            inner.relocate(first, ("right", 0))
            while turns:
                turns = [turn for turn in turns if next(turn, StopIteration) is None]
            assert inner.wait().stage is RelocationStage.DONE, inner.changes[-1]
            assert inner.places(first) == (("right", 0),)
            assert [first.digest(), second.digest()] == alone


def test_what_waits_during_the_move_runs_after_it_payloads_included(
    inner: InnerCluster, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = fixed_batch(4, sequences=160, longest=40)  # it is staged

    def train(actor: plex.Actor, *, moves: bool) -> dict[str, str]:
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        gate = Gate(inner, monkeypatch) if moves else None
        if gate is not None:
            inner.relocate(actor, ("right", 1))
            gate.wait_until_entered()
        waiting: list[Future[Any]] = [
            actor.forward_backward.submit(big, loss="ppo"),
            actor.step.submit(),
            actor.forward.submit(big),
        ]
        if gate is not None:
            with pytest.raises(TimeoutError):
                waiting[0].result(1)
            gate.open()
            assert inner.wait().stage is RelocationStage.DONE, inner.changes[-1]
        for future in waiting:
            future.result(120)
        return actor.digest()

    with inner.connect() as connection:
        with connection.job("alone") as job:
            alone = train(deploy(job, tiny_model, seed=0), moves=False)
        with connection.job("moved") as job:
            assert train(deploy(job, tiny_model, seed=0), moves=True) == alone


MANY = 100_000
STAGES = [RelocationStage.WAITING, RelocationStage.CARRYING, RelocationStage.RESTORING]


@pytest.mark.every(2)
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_new_rank_that_dies_leaves_the_deployment_where_it_is(
    inner: InnerCluster, tiny_model: Path, stage: RelocationStage
) -> None:
    with inner.connect() as connection:
        with connection.job("alone") as job:
            actor = deploy(job, tiny_model, seed=0)
            run_interleaved([Program(actor, 0)])
            alone = actor.digest()
        with connection.job("stays") as job:
            actor = deploy(job, tiny_model, seed=0)
            turns = Program(actor, 0).operations()
            next(turns)
            inner.on_stage[stage] = lambda: inner.kill(actor, is_new=True)
            inner.relocate(actor, ("right", 0))
            for _ in turns:
                pass
            ended = inner.wait()
            assert ended.stage is RelocationStage.FAILED
            assert ended.fault is not None
            assert ended.fault.code == "worker_died", ended
            assert inner.places(actor) == (("left", 0),)
            assert actor.digest() == alone
    wait_until(lambda: not inner.pids(), what="no process is left")


@pytest.mark.every(2)
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_an_old_rank_that_dies_fails_the_deployment_and_frees_both_places(
    inner: InnerCluster, tiny_model: Path, stage: RelocationStage
) -> None:
    failure: plex.PlexError | None = None
    with inner.connect() as connection, connection.job("dies") as job:
        actor = deploy(job, tiny_model, seed=0)
        turns = Program(actor, 0).operations()
        next(turns)
        inner.on_stage[stage] = lambda: inner.kill(actor, is_new=False)
        inner.relocate(actor, ("right", 0))
        try:
            for _ in turns:
                pass
            for _ in range(MANY):  # until the rank is killed, however long the new one takes
                actor.step()
                if inner.ended.is_set() and inner.changes[-1].stage is RelocationStage.DONE:
                    break
        except plex.PlexError as error:
            failure = error
    if failure is None:  # the new rank was ready before it was known that the old one is dead
        assert (stage, inner.wait().stage) == (RelocationStage.RESTORING, RelocationStage.DONE)
    else:
        assert failure.code in {"worker_died", "deployment_failed"}
        assert inner.wait().stage is RelocationStage.FAILED
    wait_until(lambda: not inner.pids(), what="no process is left")


@pytest.mark.every(2)
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_job_that_is_cancelled_on_the_way_frees_both_places(
    inner: InnerCluster, tiny_model: Path, stage: RelocationStage
) -> None:
    with inner.connect() as connection:
        with connection.job("cancelled") as job:
            actor = deploy(job, tiny_model, seed=0)
            inner.on_stage[stage] = lambda: inner.cancel(actor)
            inner.relocate(actor, ("right", 0))
            ended = inner.wait()
        assert ended.stage is RelocationStage.FAILED
        assert ended.fault is not None
        assert ended.fault.code == "job_ended"
    wait_until(lambda: not inner.pids(), what="no process is left")


def test_instances_move_with_the_version_they_serve(tmp_path: Path, tiny_model: Path) -> None:
    nodes = (node("left", rollout=2),)
    prompt = [3, 4, 12, 5, 16]
    with (
        start_inner(tmp_path, nodes=nodes) as inner,
        inner.connect() as connection,
        connection.job("job") as job,
    ):
        actor = deploy(job, tiny_model, seed=0)
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
        actor.forward_backward(fixed_batch(1), loss="ppo")
        actor.step()
        version = rollout.sync(actor)

        def sampled() -> tuple[list[int], set[int]]:
            (sample,) = rollout.generate([prompt], n=1, max_tokens=8, temperature=0.0)
            return list(sample.tokens), set(sample.versions)

        before = sampled()
        assert inner.places(rollout) == (("left", 1),)
        inner.relocate(rollout, ("left", 2))
        assert inner.wait().stage is RelocationStage.DONE, inner.changes[-1]
        assert inner.places(rollout) == (("left", 2),)
        assert sampled() == before
        assert before[1] == {version}
        actor.forward_backward(fixed_batch(2), loss="ppo")
        actor.step()
        assert rollout.sync(actor) > version
        sampled()
