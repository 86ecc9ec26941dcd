"""What every engine behind the instance service does: one suite for fake and real engines."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc.aio
import pytest

from plexclient.errors import ErrorCode
from plexclient.wire.v1 import operations_pb2, rollout_pb2, rollout_pb2_grpc
from plexsvc.ids import VersionId
from plexsvc.rpc.errors import error_from
from tests.rigs.rollout_requests import FENCE, Answer, call, collect, request

PROMPTS = ([3, 4, 5], [6, 7, 8, 9], [10, 11])
TIMEOUT_S = 120
LONG = 120
TRIES = 3
Stub: TypeAlias = "rollout_pb2_grpc.RolloutInstanceAsyncStub"
Frames: TypeAlias = "grpc.aio.UnaryStreamCall[Any, rollout_pb2.InstanceFrame]"


async def answers(
    stub: Stub, *requests: rollout_pb2.InstanceRequest
) -> dict[tuple[int, int], Answer]:
    found: dict[tuple[int, int], Answer] = {}
    async for frame in stub.Generate(call(*requests), timeout=TIMEOUT_S):
        collect(frame.deltas, found)
    return found


async def refusal(call_: Frames) -> ErrorCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call_:
            pass
    return error_from(caught.value).code


class EngineContract:
    """Subclasses bring the fixture `stub`: a serving instance, vocabulary 50, length 128."""

    async def test_every_request_gets_all_its_tokens_and_a_finish_reason(self, stub: Stub) -> None:
        found = await answers(
            stub, *(request(p, index=i, ignore_eos=True) for i, p in enumerate(PROMPTS))
        )
        assert len(found) == 3
        for answer in found.values():
            assert len(answer.tokens) == 16
            assert all(0 <= token < 50 for token in answer.tokens)
            assert all(logprob <= 0 for logprob in answer.logprobs)
            assert answer.finish == operations_pb2.FINISH_REASON_LENGTH
            assert len(set(answer.versions)) == 1
            assert len(answer.versions) == 16

    async def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(
        self, stub: Stub
    ) -> None:
        def ask(name: str, seed: int) -> rollout_pb2.InstanceRequest:
            return request(PROMPTS[0], name=name, seed=seed, ignore_eos=True)

        first, again, other = [
            (await answers(stub, ask(n, s)))[0, 0].tokens for n, s in (("a", 1), ("b", 1), ("c", 2))
        ]
        assert first == again
        assert first != other

    async def test_a_sample_goes_on_exactly_from_any_of_its_tokens(self, stub: Stub) -> None:
        whole = (await answers(stub, request(PROMPTS[1], ignore_eos=True)))[0, 0]
        for cut in (1, 7, 15):
            rest = request(
                PROMPTS[1], name=f"c{cut}", generated=whole.tokens[:cut], ignore_eos=True
            )
            answer = (await answers(stub, rest))[0, 0]
            assert answer.start == cut
            assert answer.tokens == whole.tokens[cut:]
            assert answer.logprobs == pytest.approx(whole.logprobs[cut:], abs=1e-4)

    async def test_a_stop_token_ends_a_sample_and_stays_in_it(self, stub: Stub) -> None:
        whole = (await answers(stub, request(PROMPTS[0], ignore_eos=True)))[0, 0]
        stop = whole.tokens[5]
        stopped = request(PROMPTS[0], name="s", stop_token_ids=[stop], ignore_eos=True)
        answer = (await answers(stub, stopped))[0, 0]
        assert answer.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
        assert answer.finish == operations_pb2.FINISH_REASON_STOP
        assert answer.stop_reason == str(stop)

    async def test_prompt_logprobs_come_once_for_all_tokens_but_the_first(self, stub: Stub) -> None:
        answer = (await answers(stub, request(PROMPTS[1], prompt_logprobs=True)))[0, 0]
        assert len(answer.prompt_logprobs) == len(PROMPTS[1]) - 1
        assert all(logprob <= 0 for logprob in answer.prompt_logprobs)

    async def test_tokens_come_with_their_texts_when_asked(self, stub: Stub) -> None:
        texts: list[str] = []
        tokens = 0
        asked = request(PROMPTS[1], texts=True, ignore_eos=True)
        async for frame in stub.Generate(call(asked), timeout=TIMEOUT_S):
            for delta in frame.deltas:
                assert len(delta.texts) == len(delta.token_ids)
                texts += delta.texts
                tokens += len(delta.token_ids)
        assert tokens == 16
        assert "".join(texts)

    async def test_texts_are_encoded(self, stub: Stub) -> None:
        asked = [operations_pb2.Prompt(text="1+2="), operations_pb2.Prompt(text="abc")]
        reply = await stub.Encode(rollout_pb2.EncodeRequest(prompts=asked), timeout=TIMEOUT_S)
        first, second = (list(prompt.token_ids) for prompt in reply.prompts)
        assert (len(first), len(second)) == (4, 3)
        assert all(0 <= token < 50 for token in first + second)

    async def test_a_request_with_nothing_left_finishes_at_once(self, stub: Stub) -> None:
        done = request(PROMPTS[0], max_tokens=2, generated=[5, 6])
        answer = (await answers(stub, done))[0, 0]
        assert answer.tokens == []
        assert answer.finish == operations_pb2.FINISH_REASON_LENGTH

    async def test_a_request_that_does_not_fit_is_refused_before_any_token(
        self, stub: Stub
    ) -> None:
        too_long = call(request([5] * 128))
        assert await refusal(stub.Generate(too_long, timeout=TIMEOUT_S)) == ErrorCode.BAD_REQUEST

    async def test_a_call_with_a_request_it_cannot_run_leaves_nothing_of_the_others(
        self, stub: Stub
    ) -> None:
        good = request(PROMPTS[0], name="good", max_tokens=100, ignore_eos=True)
        hot = request(PROMPTS[0], name="hot", index=1, temperature=1000.0)
        mixed = call(good, hot)
        assert await refusal(stub.Generate(mixed, timeout=TIMEOUT_S)) == ErrorCode.BAD_REQUEST
        assert len((await answers(stub, good))[0, 0].tokens) == 100

    async def test_a_version_that_is_not_there_is_not_served(self, stub: Stub) -> None:
        newer = call(request(PROMPTS[0]), version=VersionId("job/actor", 1, 10_000))
        assert await refusal(stub.Generate(newer, timeout=TIMEOUT_S)) == ErrorCode.UNAVAILABLE

    async def test_an_order_with_an_older_epoch_is_refused(self, stub: Stub) -> None:
        stale = call(request(PROMPTS[0]))
        stale.fence.scheduler_epoch = 0
        assert await refusal(stub.Generate(stale, timeout=TIMEOUT_S)) == ErrorCode.STALE_FENCE

    async def test_aborting_ends_the_stream_and_leaves_nothing_running(self, stub: Stub) -> None:
        keep = request(PROMPTS[0], name="keep", index=1, max_tokens=100, ignore_eos=True)
        stop = request(PROMPTS[0], name="stop", max_tokens=100, ignore_eos=True)
        found: dict[tuple[int, int], Answer] = {}
        async for frame in stub.Generate(call(stop, keep), timeout=TIMEOUT_S):
            if not found:
                await stub.Abort(
                    rollout_pb2.InstanceAbortRequest(request_ids=[stop.request_id]), timeout=60
                )
            collect(frame.deltas, found)
        assert found[0, 0].finish == operations_pb2.FINISH_REASON_ABORT
        assert len(found[0, 0].tokens) < 100
        assert len(found[1, 0].tokens) == 100
        stats = await stub.Stats(rollout_pb2.InstanceStatsRequest(), timeout=120)
        assert (stats.running, stats.waiting) == (0, 0)

    async def test_a_cancelled_stream_aborts_its_requests(self, stub: Stub) -> None:
        # one that nobody aborts makes all its tokens; one may be quicker than its cancel
        made = [await self._made_of_a_cancelled_stream(stub, name=f"x{i}") for i in range(TRIES)]
        assert min(made) < LONG, "it ran to its end every time"

    async def test_an_engine_asleep_makes_no_token_and_goes_on_exactly(self, stub: Stub) -> None:
        """Its weights are the model's own: nothing else is needed to wake it."""
        asked = request(PROMPTS[0], max_tokens=LONG, ignore_eos=True)
        whole = (await answers(stub, asked))[0, 0]
        found: dict[tuple[int, int], Answer] = {}
        async for frame in stub.Generate(call(asked), timeout=TIMEOUT_S):
            if not found:
                asleep = await stub.Sleep(rollout_pb2.SleepRequest(fence=FENCE), timeout=TIMEOUT_S)
                assert (asleep.error.code, asleep.nbytes > 0) == ("", True)
                await self._check_asleep(stub)
                wake = rollout_pb2.LoadVersionRequest(fence=FENCE)
                assert (await stub.Wake(wake, timeout=TIMEOUT_S)).error.code == ""
            collect(frame.deltas, found)
        assert found[0, 0].tokens == whole.tokens
        assert found[0, 0].logprobs == pytest.approx(whole.logprobs, abs=1e-4)
        assert (await answers(stub, asked))[0, 0].tokens == whole.tokens

    async def _check_asleep(self, stub: Stub) -> None:
        asked = rollout_pb2.InstanceStatsRequest()
        before = await stub.Stats(asked, timeout=120)
        other = call(request(PROMPTS[0], name="other"))
        for _ in range(20):  # each takes as long as a step of the model
            assert await refusal(stub.Generate(other, timeout=TIMEOUT_S)) == ErrorCode.UNAVAILABLE
        after = await stub.Stats(asked, timeout=120)
        assert after.is_asleep
        assert after.running + after.waiting == 1, "it waits"
        assert after.generated_tokens == before.generated_tokens
        again = await stub.Sleep(rollout_pb2.SleepRequest(fence=FENCE), timeout=TIMEOUT_S)
        assert again.error.code == ""

    async def _made_of_a_cancelled_stream(self, stub: Stub, *, name: str) -> int:
        before = await stub.Stats(rollout_pb2.InstanceStatsRequest(), timeout=120)
        long = request(PROMPTS[0], name=name, max_tokens=LONG, ignore_eos=True)
        stream = stub.Generate(call(long), timeout=TIMEOUT_S)
        await stream.read()
        stream.cancel()
        asked = rollout_pb2.InstanceStatsRequest()
        async with asyncio.timeout(TIMEOUT_S):
            while (stats := await stub.Stats(asked, timeout=120)).running:  # noqa: ASYNC110 - another process has to get there
                await asyncio.sleep(0.01)
        return stats.generated_tokens - before.generated_tokens
