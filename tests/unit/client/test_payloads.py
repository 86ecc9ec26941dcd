"""Large arrays: staged uploads that start over, results fetched from where they broke off."""

from __future__ import annotations

import numpy as np
import pytest

import plexclient as plex
from plexclient.errors import ErrorCode, PlexError
from plexclient.payloads import add_chunk
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2
from tests.fakes.fake_router import TOKEN, FakeRouter, Fault, fake_logprobs
from tests.unit.client.conftest import Loop

CUT = Fault(cut_after=2)


def large_batch(num_tokens: int = 300_000) -> plex.Batch:
    rng = np.random.default_rng(0)
    bounds = np.linspace(0, num_tokens, 50).astype(np.int32)
    return plex.Batch(
        tokens=rng.integers(0, 50, num_tokens).astype(np.int32),
        cu_seqlens=bounds,
        target_tokens=rng.integers(0, 50, num_tokens).astype(np.int32),
    )


def test_a_small_batch_travels_inside_its_operation(loop: Loop, router: FakeRouter) -> None:
    loop.actor.forward(plex.Batch.from_sequences([[1, 2, 3]]))
    assert router.attempts[0].payload.WhichOneof("form") == "inline"
    assert "StagePayload" not in router.calls


def test_a_large_batch_is_staged_under_the_operations_id(loop: Loop, router: FakeRouter) -> None:
    batch = large_batch()
    result = loop.actor.forward(batch)
    sent = router.attempts[0]
    assert sent.payload.staged.staging_id == sent.operation_id
    assert sent.payload.staged.nbytes > 2_000_000
    upload = router.uploads[sent.operation_id]
    assert list(upload) == ["cu_seqlens", "tokens", "target_tokens"]
    for name, array in upload.items():
        np.testing.assert_array_equal(array, getattr(batch, name))
    np.testing.assert_array_equal(result.logprobs, fake_logprobs(batch.tokens, batch.target_tokens))


@pytest.mark.parametrize("faults", [[CUT], [CUT, Fault(lose_request=True), CUT]])
def test_a_cut_upload_starts_over_and_the_operation_runs_once(
    loop: Loop, router: FakeRouter, faults: list[Fault]
) -> None:
    batch = large_batch()
    router.fail("StagePayload", *faults)
    result = loop.actor.forward(batch)
    assert router.calls.count("StagePayload") == len(faults) + 1
    assert router.order == [("actor", "forward")]
    np.testing.assert_array_equal(result.logprobs, fake_logprobs(batch.tokens, batch.target_tokens))


@pytest.mark.parametrize("cuts", [[], [2], [1, 0, 1]])
def test_a_staged_result_is_fetched_from_where_it_broke_off(
    loop: Loop, router: FakeRouter, cuts: list[int]
) -> None:
    batch = large_batch()
    router.stage_results = True
    router.fail("FetchResult", *[Fault(cut_after=cut) for cut in cuts])
    result = loop.actor.forward(batch)
    np.testing.assert_array_equal(result.logprobs, fake_logprobs(batch.tokens, batch.target_tokens))
    assert router.calls.count("FetchResult") == 2 + len(cuts)


def test_an_upload_whose_reply_is_lost_does_not_hold_its_operation(
    loop: Loop, router: FakeRouter
) -> None:
    router.fail("StagePayload", Fault(lose_reply=True))
    assert loop.actor.forward(large_batch())["tokens"] == 300_000
    assert router.order == [("actor", "forward")]


def test_staging_that_is_full_is_tried_again(loop: Loop, router: FakeRouter) -> None:
    full = PlexError(ErrorCode.STAGING_FULL, "node-a is full")
    router.fail("StagePayload", Fault(refuse=full), Fault(refuse=full))
    assert loop.actor.forward(large_batch())["tokens"] == 300_000


def test_payloads_enter_staging_memory_in_the_order_of_their_operations(
    loop: Loop, router: FakeRouter
) -> None:
    """One that came first would wait there for its predecessor, which then found no room."""
    router.max_staged = 1
    router.fail("StagePayload", CUT, Fault(lose_request=True))
    calls = [loop.actor.forward.submit(large_batch()) for _ in range(4)]
    assert [call.result(120)["tokens"] for call in calls] == [300_000] * 4


@pytest.mark.parametrize("code", [ErrorCode.STAGING_FULL, ErrorCode.CHECKSUM_MISMATCH])
def test_a_staged_operation_that_is_refused_for_now_brings_its_payload_again(
    loop: Loop, router: FakeRouter, code: ErrorCode
) -> None:
    router.fail("Operate", *[Fault(refuse=PlexError(code, "not now"))] * 2)
    assert loop.actor.forward(large_batch())["tokens"] == 300_000
    assert router.calls.count("StagePayload") == 3
    assert len({one.SerializeToString() for one in router.attempts}) == 1


@pytest.mark.parametrize("is_staged", [True, False])
def test_a_payload_carries_the_checksum_of_its_bytes(
    loop: Loop, router: FakeRouter, is_staged: bool
) -> None:
    batch = large_batch() if is_staged else plex.Batch.from_sequences([[1, 2, 3]])
    loop.actor.forward(batch)
    (sent,) = router.attempts
    arrays = router.uploads[sent.operation_id] if is_staged else tensors.decode(sent.payload.inline)
    assert sent.payload.checksum == tensors.checksum([tensors.encode(arrays).data])


def test_a_damaged_result_is_fetched_again_and_never_returned(
    loop: Loop, router: FakeRouter
) -> None:
    batch = large_batch()
    router.stage_results, router.damages_left = True, 2
    result = loop.actor.forward(batch)
    np.testing.assert_array_equal(result.logprobs, fake_logprobs(batch.tokens, batch.target_tokens))
    router.damages_left = 9
    with pytest.raises(PlexError) as caught:
        loop.actor.forward(batch)
    assert caught.value.code == ErrorCode.CHECKSUM_MISMATCH


def test_a_payload_refused_for_good_ends_its_operation(router: FakeRouter) -> None:
    options = plex.ClientOptions(staging_settle_s=0.05)
    bad = PlexError(ErrorCode.BAD_BATCH, "token 9 is not in the vocabulary", array="tokens")
    with (
        plex.connect(router.address, token=TOKEN, options=options) as cluster,
        cluster.job("refused") as job,
    ):
        actor = job.deploy("actor", model="/model", backend="noop")
        router.fail("StagePayload", *[Fault(refuse=bad)] * 9)  # gRPC may lose the first refusal
        with pytest.raises(PlexError, match="token 9 is not") as caught:
            actor.forward(large_batch())
        assert caught.value.facts["array"] == "tokens"


def test_unanswered_payloads_are_bounded(router: FakeRouter) -> None:
    options = plex.ClientOptions(max_unanswered_payload_bytes=3_000_000)
    with (
        plex.connect(router.address, token=TOKEN, options=options) as cluster,
        cluster.job("bounded") as job,
    ):
        actor = job.deploy("actor", model="/model", backend="noop")
        router.fail("Operate", *[Fault(lose_request=True)] * 3)
        first = actor.forward.submit(large_batch())
        with pytest.raises(PlexError) as caught:
            actor.forward.submit(large_batch())
        assert caught.value.code == "queue_full"
        assert "max_unanswered_payload_bytes" in caught.value.message
        first.result(120)
        assert actor.forward(large_batch())["tokens"] == 300_000
        with pytest.raises(PlexError) as too_large:
            actor.forward(large_batch(600_000))
        assert too_large.value.code == "payload_too_large"


@pytest.mark.parametrize(("offset", "size"), [(3, 1), (0, 9)])
def test_a_chunk_that_leaves_a_hole_or_passes_the_end_is_refused(offset: int, size: int) -> None:
    with pytest.raises(PlexError, match="came after byte 2 of 8"):
        add_chunk(bytearray(2), common_pb2.Chunk(offset=offset, data=b"x" * size), most=8)
