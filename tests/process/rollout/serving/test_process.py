"""`plexctl serve` on a real vLLM: the OpenAI client, metrics, a guest beside it, reclaim."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.rollout.config import ManagerConfig
from plexsvc.rollout.core.instances import SERVING
from plexsvc.rollout.operations import APPLIED
from plexsvc.rollout.serving.control import ask
from tests.fakes.fake_instances import FakeInstance
from tests.rigs.keys import keys_file
from tests.rigs.lent_engine import ServedEngine, served
from tests.rigs.rollout_bench import Bench, bench
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.vllm_process import vllm_instance

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """One with two guests, which others may reach."""
    place = tmp_path_factory.mktemp("serving")
    make_qwen3(place / "chat", seed=1)
    guests = [make_qwen3(place / f"guest{n}", seed=2 + n, layers=3 + n) for n in range(2)]
    lending = [word for guest in guests for word in ("--lend-model", str(guest))]
    with served(place, "--lend", *lending, "--keys", str(keys_file(place))) as found:
        yield found


def test_an_openai_client_is_served_beside_guests_that_can_be_sent_away(
    engine: ServedEngine,
) -> None:
    with openai.OpenAI(base_url=engine.address, api_key="none") as client:
        address = engine.address
        asked: Any = {"model": "chat", "prompt": "1+2=", "max_tokens": 20, "temperature": 0}
        extra = {"ignore_eos": True}
        whole: Any = client.completions.create(**asked, extra_body=extra)
        stream: Any = client.completions.create(**asked, stream=True, extra_body=extra)
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        assert whole.usage.completion_tokens == 20
        with urllib.request.urlopen(address.removesuffix("/v1") + "/metrics") as metrics:
            assert b"vllm:time_to_first_token_seconds_count" in metrics.read()
        report = engine.plexctl("serve", "report", "chat")
        assert report["alone"]["requests"] == 2
        assert report["is_lent"]
        assert [one["name"] for one in report["guests"]] == ["chat.guest0", "chat.guest1"]
        taken = engine.plexctl("instance", "reclaim", "chat")
        assert taken["had_bytes"] > 100 << 20
        assert taken["left_bytes"] < 1 << 20, "resident, whatever was lent"
        assert not engine.plexctl("serve", "report", "chat")["is_lent"]
        assert engine.plexctl("instance", "lend", "chat")["guest_bytes"] > 100 << 20
        assert client.completions.create(**asked, extra_body=extra).choices == whole.choices


def test_bad_input_is_refused_before_anything_starts(tmp_path: Path) -> None:
    make_qwen3(tmp_path / "chat", seed=1)
    state = {"PLEX_STATE_DIR": str(tmp_path / "state")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, said in (
            (["--slo-ttft", "0", "--slo-tpot", "1"], "slo_ttft is 0"),
            (["--slo-ttft", "1", "--slo-tpot", "-1"], "slo_tpot is -1"),
            (["--slo-ttft", "nan", "--slo-tpot", "1"], "slo_ttft is nan"),
            (["--slo-ttft", "1", "--slo-tpot", "inf"], "slo_tpot is inf"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--name", "a/b"], "name is 'a/b'"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--lend-share", "0.3"], "lend is not given"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--kv-bytes", "1" + "0" * 15], "memory_bytes"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--lend-share", "2"], "share is 2.0"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--lend-hours", "now"], "lend_hours"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--lend-hours", "22:99-06:00"], "lend_hours"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--name", "n" * 200], "socket's path"),
            (["--slo-ttft", "1", "--slo-tpot", "1", "--port", port], "port: cannot listen"),
        ):
            done = CliRunner().invoke(app, ["serve", str(tmp_path / "chat"), *options], env=state)
            assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


async def test_a_reclaim_in_mid_step_loses_no_sample_and_leaves_nothing_resident(
    engine: ServedEngine,
) -> None:
    with vllm_instance(engine.place / "guest0") as dedicated:
        lent = engine.plexctl("serve", "report", "chat")["guests"][0]["instance"]
        others = cast("list[FakeInstance]", [Served(dedicated)])
        async with bench(config=ManagerConfig(), others=others) as b:
            alone = await tokens_of(b)
            deployment = b.manager._deployments["rollout"]
            await deployment.add(lent, kind=SERVING.name)
            guest = next(one for one in deployment.core.instances.values() if one.kind is SERVING)
            async with asyncio.TaskGroup() as group, asyncio.timeout(120):
                generating = group.create_task(tokens_of(b))
                while not guest.tokens:  # noqa: ASYNC110 - it counts, and tells nobody
                    await asyncio.sleep(0.002)
                assert guest.load, "it is in the middle of its samples"
                taken = await ask(engine.socket, "reclaim")
            assert generating.result() == alone
            assert guest.is_serving, "it handed its samples back and was not lost by that"
            assert taken["left_bytes"] < 1 << 20, "resident, whatever was lent"


async def tokens_of(b: Bench) -> dict[tuple[int, int], list[int]]:
    """Return the tokens of the same batch each time."""
    prompts = [[3 + i, 4, 12, 5] for i in range(16)]
    operation = b.generate(prompts, n=1, max_tokens=110, temperature=0.0, ignore_eos=True)
    assert (await b.execute(operation)).state == APPLIED
    answers = await b.answers(operation)
    assert {len(answer.tokens) for answer in answers.values()} == {110}
    return {key: answer.tokens for key, answer in answers.items()}


class Served:
    """An instance that somebody else ends."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def kill(self) -> None:
        """Leave it."""
