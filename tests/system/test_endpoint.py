"""OpenAI's own client and sessions of turns against a live cluster with real engines."""

from __future__ import annotations

import itertools
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import plexclient as plex
from tests.rigs.live_cluster import ROLLOUT, TRAIN, LiveCluster, start_cluster
from tests.rigs.tiny_models import ALPHABET, make_qwen3
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

OPEN = """
tokens = { mine = "default", theirs = "rival" }
router.http_listen = "127.0.0.1:0"
"""
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True, slots=True)
class Served:
    """A job whose rollout deployment has two engines, and where OpenAI's clients reach it."""

    live: LiveCluster
    rollout: plex.Rollout
    actor: plex.Actor

    def device_us(self) -> int:
        """Return what the job is charged so far."""
        (job,) = self.live.status().jobs
        return job.device_us

    def client(self, key: str = "mine") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://{self.live.http}/v1", api_key=key, max_retries=0)


PIECES = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)]
HARD = {"allOf": PIECES}
"""A schema that takes for ever to compile."""
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 1, "maximum": 99},
        "b": {"enum": ["x", "yz"]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
LETTERS = ALPHABET + '{}[]"_<>'
"""What JSON needs, too."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tiny_model = make_qwen3(tmp_path_factory.mktemp("model") / "tiny", seed=1, alphabet=LETTERS)
    nodes = {"only": [TRAIN, ROLLOUT, ROLLOUT]}
    with (
        start_cluster(tmp_path_factory.mktemp("endpoint"), nodes=nodes, extra=OPEN) as live,
        live.connect() as connection,
        connection.job("agents") as job,
    ):
        actor = job.deploy(
            "actor", model=str(tiny_model), backend="megatron", optimizer=plex.AdamW(lr=1e-2)
        )
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=256, instances=2)
        yield Served(live, rollout, actor)


def test_weights_that_were_not_synced_are_not_sampled_and_then_their_version_is_told(
    served: Served,
) -> None:
    model = served.rollout.deployment_id
    with served.client() as api:
        assert [one.id for one in api.models.list()] == [model]
        with pytest.raises(openai.NotFoundError, match="sync"):
            api.chat.completions.create(model=model, messages=MESSAGES)
        served.rollout.sync(served.actor)
        told = api.completions.create(
            model=model, prompt=[3, 4, 5], max_tokens=8, extra_body={"return_token_ids": True}
        )
    more: Any = told.choices[0].model_extra
    (sample,) = served.rollout.generate([[3, 4, 5]], max_tokens=2)
    assert more["prompt_token_ids"] == [3, 4, 5]
    assert set(more["weight_versions"]) == set(sample.versions)
    assert len(more["weight_versions"]) == len(more["token_ids"])


def test_tokens_that_go_in_and_out_are_those_that_the_actor_would_train_on(served: Served) -> None:
    served.rollout.sync(served.actor)
    body = {
        "model": served.rollout.deployment_id,
        "token_ids": [3, 4, 5],
        "sampling_params": {"max_tokens": 12, "logprobs": 1, "skip_special_tokens": False},
    }
    with served.client() as api:
        answer = api.post(
            f"http://{served.live.http}/inference/v1/generate", body=body, cast_to=httpx.Response
        )
    (choice,) = answer.json()["choices"]
    logprobs = [one["logprob"] for one in choice["logprobs"]["content"]]
    sequence = [3, 4, 5, *choice["token_ids"]]
    again = served.actor.forward(plex.Batch.from_sequences([sequence])).logprobs
    assert list(again[2:]) == pytest.approx(logprobs, abs=1e-3)


def test_a_chat_is_the_models_template_whole_and_streamed(served: Served) -> None:
    served.rollout.sync(served.actor)
    asked: Any = {
        "model": served.rollout.deployment_id,
        "messages": MESSAGES,
        "max_completion_tokens": 12,
        "temperature": 0,
        "logprobs": True,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
    }
    with served.client() as api:
        whole = api.chat.completions.create(**asked)
        chunks = list(
            api.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
    (choice,) = whole.choices
    more: Any = choice.model_extra
    template = served.rollout.tokenizer.encode("user: hi. assistant: ")
    assert more["prompt_token_ids"] == template
    assert choice.message.content == served.rollout.tokenizer.decode(more["token_ids"])
    assert choice.logprobs is not None
    assert len(choice.logprobs.content or ()) == 12
    parts = [one.choices[0].delta.content or "" for one in chunks if one.choices]
    assert "".join(parts) == choice.message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == len(template)
    assert chunks[-1].usage.completion_tokens == 12


def test_a_sessions_requests_find_their_prefix_and_other_tenants_find_nothing(
    served: Served,
) -> None:
    served.rollout.sync(served.actor)
    model = served.rollout.deployment_id
    prompt = [(7 * i) % 48 + 2 for i in range(96)]

    def cached(session: str, tokens: list[int]) -> int:
        with served.client() as api:
            told = api.completions.create(
                model=model, prompt=tokens, max_tokens=1, extra_headers={"X-Session-Id": session}
            )
        assert told.usage is not None
        assert told.usage.prompt_tokens_details is not None
        return told.usage.prompt_tokens_details.cached_tokens or 0

    sessions = [[session, *prompt] for session in range(2, 8)]
    first = [cached(f"s{tokens[0]}", tokens) for tokens in sessions]
    again = [cached(f"s{tokens[0]}", [*tokens, 5, 6, 7]) for tokens in sessions]
    assert (first, again) == ([0] * 6, [96] * 6)
    with served.client("theirs") as api:
        assert not list(api.models.list())
        with pytest.raises(openai.NotFoundError):
            api.completions.create(model=model, prompt=prompt)


def turn_beside_a_sync(served: Served, *, turns: str) -> tuple[int, list[int], int, list[int]]:
    """Sync in mid-turn; return the version before, the turn's, the one after, a later turn's."""
    before = served.rollout.sync(served.actor)
    (sample,) = served.rollout.generate([[3, 4, 5]], max_tokens=4, ignore_eos=True)
    batch = plex.Batch.from_samples([sample], advantages=[1.0])
    served.actor.forward_backward(batch, loss="importance_sampling")
    served.actor.step()
    found: list[int] = []
    with served.client() as api:
        chunks = api.completions.create(
            model=served.rollout.deployment_id,
            prompt=[3, 4, 5],
            max_tokens=250,
            stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        syncing = None
        for chunk in chunks:
            more: Any = chunk.choices[0].model_extra if chunk.choices else {}
            found += more.get("weight_versions") or ()
            syncing = syncing or served.rollout.sync.submit(served.actor, turns=turns)
        assert syncing is not None
        later = served.rollout.session().generate([3, 4, 5], max_tokens=4)
    return before, found, syncing.result(), later.versions


def test_a_turn_goes_on_with_a_version_that_comes_meanwhile(served: Served) -> None:
    tries = 5
    before, found, after, later = turn_beside_a_sync(served, turns="continue")
    while after not in found and tries:  # a turn may be quicker than a sync
        tries -= 1
        before, found, after, later = turn_beside_a_sync(served, turns="continue")
    assert found == sorted(found)
    assert (found[0], found[-1]) == (before, after)
    assert set(later) == {after}


def test_a_turn_ends_on_its_version_where_the_job_says_so(served: Served) -> None:
    before, found, after, later = turn_beside_a_sync(served, turns="finish")
    assert after > before
    assert (set(found), len(found)) == ({before}, 250)
    assert set(later) <= {before, after}
    assert set(served.rollout.session().generate([3, 4, 5], max_tokens=4).versions) == {after}


def test_what_turns_do_when_a_version_comes_is_one_of_two_things(served: Served) -> None:
    with pytest.raises(plex.PlexError, match="continue, finish"):
        served.rollout.sync(served.actor, turns="wait")


def test_sessions_of_turns_run_beside_each_other_and_beside_a_batch(served: Served) -> None:
    served.rollout.sync(served.actor)

    def play(number: int) -> list[plex.Sample]:
        session = served.rollout.session()
        for turn in range(4):
            session.generate(f"tool {number} says {turn}. ", max_tokens=4, ignore_eos=True)
        return session.turns

    batch = served.rollout.generate.submit([[3, 4]] * 8, n=4, max_tokens=60, ignore_eos=True)
    with ThreadPoolExecutor(12) as players:
        played = list(players.map(play, range(12)))
    assert len(batch.result()) == 32
    for turns in played:
        for before, after in itertools.pairwise(turns):
            context = [*before.prompt_tokens, *before.tokens]
            assert after.prompt_tokens[: len(context)] == context
            assert len(after.tokens) == 4
    made = plex.Batch.from_samples([t for turns in played for t in turns], advantages=[1.0] * 48)
    served.actor.forward_backward(made, loss="ppo")


def test_turns_are_in_their_jobs_bill(served: Served) -> None:
    served.rollout.sync(served.actor)
    before = served.device_us()

    def is_charged() -> bool:  # what an instance samples in a second is told after that
        served.rollout.session().generate("a long tale", max_tokens=200, ignore_eos=True)
        return served.device_us() > before

    wait_until(is_charged, what="turns are charged")


def token_of(letter: str) -> str:
    return str(2 + LETTERS.index(letter))


def test_what_users_of_vllms_server_ask_for_is_done_or_refused_by_name(served: Served) -> None:
    served.rollout.sync(served.actor)
    model = served.rollout.deployment_id
    few_spaces = {token_of(" "): -100.0}
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    with served.client() as api:

        def chat(**asked: Any) -> Any:
            given: dict[str, Any] = {"logit_bias": few_spaces, "max_tokens": 120} | asked
            create: Any = api.chat.completions.create
            return create(model=model, messages=MESSAGES, **given)

        plain = chat(
            logit_bias={"0": 100},
            max_tokens=5,
            logprobs=True,
            top_logprobs=3,
            presence_penalty=1,
            frequency_penalty=1,
            extra_body={"min_p": 0.1, "repetition_penalty": 1.1, "skip_special_tokens": False},
        ).choices[0]
        assert plain.message.content == "<pad>" * 5
        assert [one.top_logprobs[0].token for one in plain.logprobs.content] == ["<pad>"] * 5

        wanted = {"name": "n", "schema": SCHEMA}
        told = chat(n=4, response_format={"type": "json_schema", "json_schema": wanted})
        for one in told.choices:
            found = json.loads(one.message.content)
            assert 1 <= found["a"] <= 99
            assert found["b"] in {"x", "yz"}
            assert one.finish_reason == "stop"
        matched = chat(extra_body={"structured_outputs": {"regex": "[a-c]{20}"}}).choices[0]
        assert re.fullmatch("[a-c]{20}", matched.message.content)

        named = {"type": "function", "function": {"name": "add"}}
        (call,) = chat(tools=[tool], tool_choice=named).choices[0].message.tool_calls
        assert json.loads(call.function.arguments).keys() == {"a", "b"}
        calls: list[Any] = []
        for chunk in chat(
            tools=[tool],
            tool_choice=named,
            stream=True,
            extra_body={"chat_template_kwargs": {"x": 1}},
        ):
            calls += chunk.choices[0].delta.tool_calls or []
            assert not chunk.choices[0].delta.content
        assert json.loads(calls[0].function.arguments).keys() == {"a", "b"}

        for refused in (
            {"extra_body": {"structured_outputs": {"regex": "("}}},
            {"extra_body": {"structured_outputs": {"json": {"$ref": "http://127.0.0.1/"}}}},
            {"extra_body": {"chat_template_kwargs": {"tokenize": True}}},
            {"logit_bias": {"58": 1}},
            {"extra_body": {"structured_outputs": {"json": HARD}}},
        ):
            with pytest.raises(openai.BadRequestError):
                chat(**refused)


def test_a_text_is_tokenised_as_vllms_server_does_it(served: Served) -> None:
    model = served.rollout.deployment_id
    with served.client() as api:
        words = api.post(
            "/../tokenize",
            body={"model": model, "prompt": "a{", "return_token_strs": True},
            cast_to=object,
        )
        assert words == {
            "count": 2,
            "max_model_len": 256,
            "tokens": [int(token_of("a")), int(token_of("{"))],
            "token_strs": ["a", "{"],
        }


def test_a_scrape_shows_the_cluster_to_operators_alone(served: Served) -> None:
    def scrape(token: str) -> tuple[int, str]:
        url = f"http://{served.live.http}/metrics"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(asked, timeout=120) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    served.actor.digest()
    status, text = scrape("mine")
    assert status == 200
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {value for (name, *_), value in found.items() if name == "plex_up"} == {1}
    assert found["plex_nodes", "up"] == 1
    assert found["plex_rollout_instances", "dedicated", "serving"] == 2
    assert found["plex_jobs", "running", "default"] == 1
    assert found["plex_device_busy_seconds_total", "0", "train", "only"] > 0
    assert found["plex_operation_seconds_count", "state_digest"] >= 1
    status, refusal = scrape("theirs")
    assert status == 403
    assert "router.operators" in refusal
    assert scrape("nobody's")[0] == 401
