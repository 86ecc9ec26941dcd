"""generate: whole or streamed, resumed by cursor after a cut, refused with its cause."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

import plexclient as plex
from plexclient.errors import ErrorCode, PlexError
from tests.fakes.fake_router import FakeRouter, Fault, fake_tokens
from tests.rigs.waiting import wait_until
from tests.unit.client.conftest import TOKENIZER, Loop

PROMPTS = [[1, 2], [30]]
LOST = Fault(lose_request=True)


def expected(n: int, max_tokens: int) -> list[list[int]]:
    return [fake_tokens(prompt, i, max_tokens) for prompt in PROMPTS for i in range(n)]


def tokens(samples: plex.Samples) -> list[list[int]]:
    return [sample.tokens for sample in samples]


def test_samples_come_prompt_by_prompt(loop: Loop, router: FakeRouter) -> None:
    samples = loop.rollout.generate(PROMPTS, n=2, max_tokens=7, temperature=0.5, seed=4)
    assert tokens(samples) == expected(2, 7)
    assert [(s.prompt_index, s.sample_index) for s in samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert samples[0].prompt_tokens == [1, 2]
    assert samples[0].finish_reason == "length"
    assert samples[0].text is None
    sent = router.attempts[0].generate.sampling
    assert (sent.n, sent.max_tokens, sent.temperature, sent.seed) == (2, 7, 0.5, 4)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(cut_after=0)],
        [Fault(cut_after=1)],
        [Fault(cut_after=2), LOST, Fault(cut_after=1)],
        [Fault(cut_after=1), Fault(replay=True)],
        [Fault(cut_after=1), Fault(replay=True, cut_after=2), Fault(replay=True)],
    ],
)
def test_a_cut_stream_goes_on_after_the_last_frame_it_has(
    loop: Loop, router: FakeRouter, faults: list[Fault]
) -> None:
    loop.rollout.noop()
    router.fail("StreamGenerate", *faults)
    samples = loop.rollout.generate(PROMPTS, n=2, max_tokens=11)
    assert tokens(samples) == expected(2, 11)
    assert [kind for _, kind in router.order].count("generate") == 1


def test_a_generate_whose_submission_is_cut_runs_once(loop: Loop, router: FakeRouter) -> None:
    router.fail("Operate", LOST, Fault(lose_reply=True), Fault(lose_reply=True))
    assert tokens(loop.rollout.generate(PROMPTS, max_tokens=5)) == expected(1, 5)
    assert router.order == [("rollout", "generate")]


def test_a_refused_generate_raises_its_cause_and_does_not_hang(
    loop: Loop, router: FakeRouter
) -> None:
    too_long = PlexError(ErrorCode.BAD_REQUEST, "prompt 0 has 9 tokens, max_model_len is 8")
    router.fail("Operate/generate", Fault(refuse=too_long))
    with pytest.raises(PlexError, match="max_model_len is 8"):
        loop.rollout.generate(PROMPTS)
    router.fail("Operate/generate", Fault(refuse=too_long))
    with pytest.raises(PlexError, match="max_model_len is 8"):
        list(loop.rollout.generate.stream(PROMPTS))
    assert tokens(loop.rollout.generate(PROMPTS, max_tokens=3)) == expected(1, 3)


def test_a_record_that_is_gone_is_an_error(loop: Loop, router: FakeRouter) -> None:
    gone = PlexError(ErrorCode.RESULT_GONE, "tokens were dropped")
    router.fail("StreamGenerate", Fault(refuse=gone))
    with pytest.raises(PlexError) as caught:
        loop.rollout.generate(PROMPTS, max_tokens=3)
    assert caught.value.code == "result_gone"


def test_a_stream_yields_each_sample_when_it_has_finished(loop: Loop) -> None:
    found = list(loop.rollout.generate.stream(PROMPTS, n=2, max_tokens=7))
    keys = [(s.prompt_index, s.sample_index) for s in found]
    assert sorted(keys) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ordered = sorted(found, key=lambda s: (s.prompt_index, s.sample_index))
    assert [s.tokens for s in ordered] == expected(2, 7)


def test_deltas_add_up_to_the_samples(loop: Loop, router: FakeRouter) -> None:
    router.fail("StreamGenerate", Fault(cut_after=1), Fault(replay=True))
    grown: list[int] = []
    is_last = False
    for delta in loop.rollout.generate.deltas([[1, 2]], max_tokens=8):
        assert delta.position == len(grown)
        grown += delta.tokens
        is_last = delta.sample is not None
    assert grown == fake_tokens([1, 2], 0, 8)
    assert is_last


async def test_streams_can_be_read_asynchronously(loop: Loop) -> None:
    stream = loop.rollout.generate.stream_aio(PROMPTS, max_tokens=4)
    found = [sample.tokens async for sample in stream]
    assert sorted(found) == sorted(expected(1, 4))
    whole, again = await asyncio.gather(
        loop.rollout.generate.aio(PROMPTS, max_tokens=4),
        loop.rollout.generate.aio(PROMPTS, max_tokens=4),
    )
    assert tokens(whole) == tokens(again) == expected(1, 4)


def test_leaving_a_stream_early_does_not_disturb_what_follows(
    loop: Loop, router: FakeRouter
) -> None:
    for _ in loop.rollout.generate.deltas(PROMPTS, max_tokens=9):
        break
    assert tokens(loop.rollout.generate(PROMPTS, max_tokens=2)) == expected(1, 2)
    assert [kind for _, kind in router.order] == ["generate", "generate"]


def cancelled(router: FakeRouter, count: int = 1) -> None:
    """Wait until the router has been asked to cancel so many, then let what it holds run."""
    wait_until(lambda: len(router.cancelled) == count, what="cancellations arrived")
    assert router.hold is not None
    router.hold.set()


async def test_a_stream_that_is_closed_unread_is_released_all_the_same(
    loop: Loop, router: FakeRouter
) -> None:
    loop.rollout.generate.stream(PROMPTS, max_tokens=2).close()
    await loop.rollout.generate.deltas_aio(PROMPTS, max_tokens=2).aclose()
    loop.rollout.noop()
    name = loop.rollout.deployment_id
    await asyncio.to_thread(
        wait_until, lambda: router.keepalives[-1].acks[name] == 3, what="all is acknowledged"
    )


def test_a_future_that_is_cancelled_ends_the_generate_on_the_service(
    loop: Loop, router: FakeRouter
) -> None:
    router.hold = threading.Event()
    on_its_way = PlexError(ErrorCode.NOT_FOUND, "no such operation")
    router.fail("CancelOperation", Fault(refuse=on_its_way), LOST)
    future = loop.rollout.generate.submit(PROMPTS)
    assert future.cancel()
    cancelled(router)
    with pytest.raises(PlexError) as caught:
        future.result()
    assert caught.value.code == "cancelled"
    assert not future.cancel(), "it is over"
    assert tokens(loop.rollout.generate(PROMPTS, max_tokens=3)) == expected(1, 3)


def test_a_stream_that_is_cancelled_ends_the_generate_on_the_service(
    loop: Loop, router: FakeRouter
) -> None:
    router.hold = threading.Event()
    stream = loop.rollout.generate.stream(PROMPTS)
    stream.cancel()
    cancelled(router)
    with pytest.raises(PlexError) as caught:
        next(stream)
    assert caught.value.code == "cancelled"


async def test_an_await_that_is_given_up_does_not_cancel_the_operation(
    loop: Loop, router: FakeRouter
) -> None:
    router.hold = threading.Event()
    for waiting in (loop.rollout.generate.aio(PROMPTS), loop.actor.noop.aio()):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.01)
    router.hold.set()
    await loop.actor.noop.aio()
    await loop.rollout.noop.aio()
    assert [kind for _, kind in router.order].count("noop") == 3
    assert router.cancelled == []


def test_a_future_of_any_operation_is_cancelled_while_it_waits(
    loop: Loop, router: FakeRouter
) -> None:
    router.hold = threading.Event()
    first, second = loop.actor.noop.submit(), loop.actor.noop.submit()
    assert second.cancel()
    cancelled(router)
    first.result()
    with pytest.raises(PlexError) as caught:
        second.result()
    assert caught.value.code == "cancelled"


def test_a_sync_that_is_cancelled_takes_both_its_operations_back(
    loop: Loop, router: FakeRouter
) -> None:
    router.hold = threading.Event()
    future = loop.rollout.sync.submit(loop.actor)
    assert future.cancel()
    cancelled(router, count=2)
    with pytest.raises(PlexError) as caught:
        future.result()
    assert caught.value.code == "cancelled"
    assert loop.rollout.sync(loop.actor) == 2


def test_a_stream_takes_its_place_when_it_is_made(loop: Loop, router: FakeRouter) -> None:
    stream = loop.rollout.generate.stream([[1]], max_tokens=2)
    loop.rollout.noop()
    assert [kind for _, kind in router.order] == ["generate", "noop"]
    assert len(list(stream)) == 1


def test_texts_in_give_texts_out(loop: Loop, router: FakeRouter) -> None:
    router.files["tokenizer.json"] = json.dumps(TOKENIZER).encode()
    router.fail("FetchModelFile", Fault(cut_after=0))
    (sample,) = loop.rollout.generate(["ab"], max_tokens=3)
    assert sample.prompt_tokens == [0, 1]
    assert sample.tokens == [1, 2, 3]
    assert sample.text == "bcd"
    assert loop.rollout.generate([[0, 1]], max_tokens=2, text=True)[0].text == "bc"
    assert loop.rollout.generate(["ab"], max_tokens=2, text=False)[0].text is None
    assert router.calls.count("FetchModelFile") == 2, "one was cut, one was enough"
    batch = plex.Batch.from_texts([("ab", "c")], tokenizer=loop.rollout.tokenizer)
    assert batch.target_tokens.tolist() == [1, 2]


def test_texts_for_a_model_without_tokenizer_are_refused_before_a_number_is_taken(
    loop: Loop, router: FakeRouter
) -> None:
    with pytest.raises(PlexError) as caught:
        loop.rollout.generate(["text"])
    assert caught.value.code == "not_found"
    assert router.attempts == []


def test_micro_batches_hold_every_sample_once_and_the_last_has_the_metrics(loop: Loop) -> None:
    batches = list(loop.rollout.generate.micro_batches(PROMPTS, min_samples=3, n=4, max_tokens=7))
    assert all(len(batch) >= 3 for batch in batches[:-1])
    assert all(not batch.metrics for batch in batches[:-1])
    samples = {(s.prompt_index, s.sample_index): s.tokens for batch in batches for s in batch}
    assert sum(len(batch) for batch in batches) == len(samples) == 8
    assert [samples[key] for key in sorted(samples)] == expected(4, 7)


async def test_micro_batches_of_a_refused_generate_say_why(loop: Loop, router: FakeRouter) -> None:
    too_long = PlexError(ErrorCode.BAD_REQUEST, "prompt 0 has 9 tokens, max_model_len is 8")
    router.fail("Operate/generate", Fault(refuse=too_long))
    stream = loop.rollout.generate.micro_batches_aio(PROMPTS, min_samples=1, max_tokens=7)
    with pytest.raises(PlexError, match="max_model_len is 8"):
        async for _ in stream:
            pass


def test_a_micro_batch_has_one_sample_at_least(loop: Loop) -> None:
    with pytest.raises(PlexError, match="min_samples=0"):
        loop.rollout.generate.micro_batches(PROMPTS, min_samples=0, max_tokens=7)
