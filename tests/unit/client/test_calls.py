"""The three forms of a call are one call, and its place in the order is taken when it is made."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from tests.fakes.fake_router import TOKEN, FakeRouter, Fault, fake_logprobs
from tests.unit.client.conftest import Loop


def kinds(router: FakeRouter, name: str) -> list[str]:
    return [kind for deployment, kind in router.order if deployment == name]


def seqs(router: FakeRouter, deployment: plex.Deployment) -> list[int]:
    return [seq for seq, _ in router.lanes[deployment.deployment_id].applied]


def test_blocking_future_and_awaited_calls_answer_alike(loop: Loop) -> None:
    async def awaited() -> plex.Answer:
        return await loop.actor.step.aio(lr=0.5)

    blocking = loop.actor.step(lr=0.5)
    future = loop.actor.step.submit(lr=0.5).result()
    assert dict(blocking) == dict(future) == dict(asyncio.run(awaited())) == {"lr": 0.5}
    assert blocking["lr"] == 0.5
    assert blocking.times.run_us == 7


async def test_calls_may_be_made_into_tasks(loop: Loop) -> None:
    async with asyncio.TaskGroup() as tasks:
        steps = [tasks.create_task(loop.actor.step.aio(lr=float(i))) for i in range(3)]
        samples = tasks.create_task(loop.rollout.generate.aio([[1]], max_tokens=2))
    assert [step.result()["lr"] for step in steps] == [0.0, 1.0, 2.0]
    assert len(samples.result()) == 1


async def test_awaited_calls_leave_the_callers_loop_free(loop: Loop, router: FakeRouter) -> None:
    router.hold = threading.Event()
    call = loop.actor.step.aio(lr=1.0)
    await asyncio.sleep(0)
    router.hold.set()
    assert (await call)["lr"] == 1.0


def test_submitted_calls_run_in_the_order_they_were_made(loop: Loop, router: FakeRouter) -> None:
    calls = [loop.actor.step.submit(lr=float(i)) for i in range(40)]
    assert [call.result()["lr"] for call in calls] == [float(i) for i in range(40)]
    assert seqs(router, loop.actor) == list(range(1, 41))


def test_threads_share_one_order_without_gaps(loop: Loop, router: FakeRouter) -> None:
    def work() -> None:
        for _ in range(20):
            loop.actor.noop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seqs(router, loop.actor) == list(range(1, 81))


def test_mixed_forms_keep_program_order(loop: Loop, router: FakeRouter) -> None:
    async def program() -> None:
        first = loop.actor.zero_grad.submit()
        second = loop.actor.step.aio()
        third = loop.actor.export.submit("/out")
        await asyncio.gather(second, asyncio.wrap_future(first), asyncio.wrap_future(third))

    asyncio.run(program())
    assert kinds(router, "actor") == ["zero_grad", "step", "export"]


def test_giving_up_an_await_does_not_take_the_operation_back(
    loop: Loop, router: FakeRouter
) -> None:
    async def give_up() -> None:
        router.hold = threading.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.actor.step.aio(lr=2.0), timeout=0)
        router.hold.set()

    asyncio.run(give_up())
    loop.actor.noop()
    assert kinds(router, "actor") == ["step", "noop"]


def test_a_sync_carries_what_was_called_before_it_and_nothing_after(
    loop: Loop, router: FakeRouter
) -> None:
    before = loop.actor.step.submit(lr=1.0)
    syncing = loop.rollout.sync.submit(loop.actor)
    after = loop.actor.step.submit(lr=2.0)
    sampling = loop.rollout.generate.submit([[1]], max_tokens=2)
    before.result()
    after.result()
    version = syncing.result()
    samples = sampling.result()
    assert kinds(router, "actor") == ["step", "publish", "step"]
    assert kinds(router, "rollout") == ["pull", "generate"]
    assert router.order.index(("actor", "publish")) < router.order.index(("rollout", "pull"))
    assert version == 2
    assert samples[0].versions == [version, version]


def test_a_pull_names_its_publish_as_what_comes_first(loop: Loop, router: FakeRouter) -> None:
    loop.rollout.sync(loop.actor)
    by_kind = {op.WhichOneof("body"): op for op in router.attempts}
    assert list(by_kind["pull"].after) == [by_kind["publish"].operation_id]
    assert by_kind["pull"].pull.source_deployment_id == loop.actor.deployment_id


def test_a_failed_publish_is_what_a_sync_raises(loop: Loop, router: FakeRouter) -> None:
    gone = plex.PlexError(plex.ErrorCode.DEPLOYMENT_FAILED, "worker 3 exited with 1")
    router.fail("Operate/publish", Fault(refuse=gone))
    with pytest.raises(plex.PlexError, match="worker 3 exited"):
        loop.rollout.sync(loop.actor)
    loop.actor.zero_grad()
    assert kinds(router, "actor") == ["zero_grad"]


def test_the_number_of_an_operation_the_service_stumbled_over_is_taken_by_a_no_op(
    loop: Loop, router: FakeRouter
) -> None:
    router.fail("Operate/step", Fault(refuse=plex.PlexError(plex.ErrorCode.INTERNAL, "a bug")))
    with pytest.raises(plex.PlexError, match="a bug"):
        loop.actor.step()
    loop.actor.zero_grad()
    assert kinds(router, "actor") == ["noop", "zero_grad"]


def test_sync_refuses_itself_and_other_jobs(loop: Loop, cluster: plex.Cluster) -> None:
    with cluster.job("other") as other:
        stranger = other.deploy("actor", model="/model", backend="noop")
        for source in (loop.rollout, stranger):
            with pytest.raises(plex.PlexError, match="another deployment of the same job"):
                loop.rollout.sync(source)


@pytest.mark.parametrize("source", ["actor", None, 7])
def test_sync_refuses_what_is_no_deployment(loop: Loop, router: FakeRouter, source: Any) -> None:
    with pytest.raises(plex.PlexError, match=r"source is .* must be a deployment") as refused:
        loop.rollout.sync(source)
    assert refused.value.code is plex.ErrorCode.BAD_REQUEST
    assert kinds(router, "rollout") == []


def test_a_blocking_call_in_a_callback_is_refused_instead_of_hanging(
    loop: Loop, router: FakeRouter
) -> None:
    caught: list[plex.PlexError] = []
    done = threading.Event()

    def callback(_: object) -> None:
        try:
            loop.actor.step()
        except plex.PlexError as error:
            caught.append(error)
        finally:
            done.set()

    router.hold = threading.Event()
    loop.actor.noop.submit().add_done_callback(callback)
    router.hold.set()
    assert done.wait(120)
    assert caught[0].code == "bad_request"


def test_closing_the_connection_answers_what_is_pending(router: FakeRouter) -> None:
    cluster = plex.connect(router.address, token=TOKEN)
    job = cluster.job("closing")
    job.__enter__()
    actor = job.deploy("actor", model="/model", backend="noop")
    router.hold = threading.Event()
    pending = actor.step.submit()
    cluster.close()
    with pytest.raises(plex.PlexError) as caught:
        pending.result(120)
    assert caught.value.code == "cancelled"
    late = actor.step.submit()
    with pytest.raises(plex.PlexError, match="connection was closed"):
        late.result(120)
    router.hold.set()


def test_forward_returns_logprobs_in_the_batchs_order(loop: Loop) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3], [4, 5], [6, 7, 8, 9]])
    result = loop.actor.forward(batch, temperature=0.7)
    expected = fake_logprobs(batch.tokens, batch.target_tokens)
    np.testing.assert_array_equal(result.logprobs, expected)
    assert result.metrics == {"tokens": 6.0}


def test_a_batch_is_scored_and_trained_on_at_its_own_temperature(
    loop: Loop, router: FakeRouter
) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3]]).replace(temperature=0.5)
    loop.actor.forward(batch)
    loop.actor.forward_backward(batch, loss="cross_entropy")
    loop.actor.backward(batch, np.zeros(2))
    loop.actor.forward(batch, temperature=2.0)
    sent = [getattr(op, op.WhichOneof("body")).temperature for op in router.attempts]
    assert sent[-4:] == [0.5, 0.5, 0.5, 2.0]


def test_a_critic_answers_values_and_a_loss_its_logprobs_when_asked(loop: Loop) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3]])
    critic = loop.job.deploy("critic", model="/model", backend="noop")
    expected = fake_logprobs(batch.tokens, batch.tokens)
    np.testing.assert_array_equal(critic.forward(batch).values, expected)
    asked = loop.actor.forward_backward(batch, loss="cross_entropy", return_logprobs=True)
    np.testing.assert_array_equal(asked.logprobs, fake_logprobs(batch.tokens, batch.target_tokens))
    assert loop.actor.forward_backward(batch, loss="cross_entropy").logprobs is None


def test_backward_sends_the_clients_gradient(loop: Loop) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3]])
    assert loop.actor.backward(batch, [0.5, 0.25])["grad_sum"] == 0.75
    with pytest.raises(plex.PlexError, match="each of the 2 tokens"):
        loop.actor.backward(batch, [0.5])


def test_a_loss_is_checked_before_a_number_is_taken(loop: Loop, router: FakeRouter) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3]])
    with pytest.raises(plex.PlexError) as unknown:
        loop.actor.forward_backward(batch, loss="pppo")
    with pytest.raises(plex.PlexError) as missing:
        loop.actor.forward_backward.submit(batch, loss="ppo", clip=0.2)
    assert unknown.value.code == "unknown_loss"
    assert missing.value.code == "bad_batch"
    assert missing.value.facts["array"] == "logprobs"
    loop.actor.noop()
    assert seqs(router, loop.actor) == [1]


def test_a_loss_carries_its_arguments_and_only_the_arrays_it_reads(
    loop: Loop, router: FakeRouter
) -> None:
    batch = plex.Batch.from_sequences([[1, 2, 3]]).replace(
        logprobs=[0, 0], advantages=[1, 1], mask=[1, 1]
    )
    loop.actor.forward_backward(batch, loss="ppo", clip=0.1)
    sent = router.attempts[-1]
    names = [spec.name for spec in sent.payload.inline.tensors]
    assert names == ["cu_seqlens", "tokens", "target_tokens", "logprobs", "advantages", "mask"]
    assert dict(sent.forward_backward.loss_args) == {"clip": 0.1}


def test_digest_and_explain_answer_plainly(loop: Loop) -> None:
    assert loop.actor.digest() == {"param": "abc"}
    answer = loop.actor.noop()
    assert loop.actor.explain(answer.operation_id) == f"{answer.operation_id.hex()} is done"
