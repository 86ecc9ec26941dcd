"""Scores through the whole service: `job.score` in all its forms, and kills on the way."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plexclient as plex
from tests.rigs.live_cluster import SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.processes import running

pytestmark = [pytest.mark.process, pytest.mark.slow]
KILLS = int(os.environ.get("PLEX_CHAOS_KILLS", "5"))  # noqa: TID251 - of `make chaos`
QUESTIONS = ["1/2", "\\frac{3}{4}", "x^2 + 2x + 1", "7"]
SLOTS = '{ kind = "reward", cpus = 2, bytes_total = 4_294_967_296 }'
HTTP = '[router]\nhttp_listen = "127.0.0.1:0"\n'
ANSWERS = ["so it is $0.5$", "$\\boxed{0.75}$", "$(x+1)^2$", "I do not know"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    directory, settings = tmp_path_factory.mktemp("rewards"), f"{SHARES_ALL}\n{HTTP}"
    with start_cluster(directory, nodes={"only": [SLOTS]}, scheduler=settings) as cluster:
        yield cluster


@pytest.fixture
def job(live: LiveCluster) -> Iterator[plex.Job]:
    with live.connect() as connection, connection.job("scored") as opened:
        yield opened


def test_a_batch_is_scored_in_order_in_every_form(job: plex.Job) -> None:
    blocking = job.score("math", ANSWERS, references=QUESTIONS)
    assert [score.value for score in blocking] == [1.0, 1.0, 1.0, 0.0]
    assert {score.verdict for score in blocking} == {"scored"}
    future = job.score.submit("math", ANSWERS, references=QUESTIONS)
    assert [score.value for score in future.result()] == [1.0, 1.0, 1.0, 0.0]
    streamed = {
        score.index: score.value
        for score in job.score.stream("math", ANSWERS, references=QUESTIONS)
    }
    assert streamed == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0}
    advantages = plex.grpo_advantages(blocking, group=2)
    assert advantages.tolist()[:2] == [0.0, 0.0]


async def test_the_awaitable_forms(live: LiveCluster) -> None:
    async with live.connect() as connection, connection.job("async") as job:
        scores = await job.score.aio("exact", ["a", "b"], references=["a", "a"])
        assert [score.value for score in scores] == [1.0, 0.0]
        found = [s.index async for s in job.score.stream_aio("exact", ["a"], references=["a"])]
    assert found == [0]


def test_a_killed_proxy_costs_a_batch_nothing_but_time(live: LiveCluster, job: plex.Job) -> None:
    texts = [str(i) for i in range(3000)]
    references = [str(i if i % 3 else -1) for i in range(3000)]
    future = job.score.submit("exact", texts, references=references)
    os.kill(_proxy(live), signal.SIGKILL)
    scores = future.result()
    assert [score.value for score in scores] == [float(bool(i % 3)) for i in range(3000)]


def test_bad_input_is_refused_before_anything_runs(job: plex.Job) -> None:
    with pytest.raises(plex.PlexError, match="2 references for 1 samples"):
        job.score("exact", ["a"], references=["a", "b"])
    with pytest.raises(plex.PlexError, match="there is no program 'nope'"):
        job.score("nope", ["a"])
    with pytest.raises(plex.PlexError, match="takes no setting 'fuzzy'"):
        job.score("exact", ["a"], references=["a"], fuzzy=True)


def plexctl(live: LiveCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plexsvc.cli.main", "reward", *arguments]
    place = ["--state-dir", str(live.state_dir)]
    return subprocess.run([*command, *place], capture_output=True, text=True, check=False)


def test_the_commands_show_programs_and_score_a_text(live: LiveCluster) -> None:
    listed = json.loads(plexctl(live, "list", "--json").stdout)
    assert {"math", "code_python"} <= {program["name"] for program in listed["programs"]}
    assert listed["sandbox"].startswith("namespaces")
    code = "print(int(input()) * 2)"
    tests = '[{"stdin": "4", "stdout": "8"}]'
    scored = plexctl(live, "test", "code_python", code, "--reference", tests, "--json")
    assert json.loads(scored.stdout)["value"] == 1.0, scored
    failed = plexctl(live, "test", "numeric", "7", "--reference", '"seven"')
    assert failed.returncode == 1
    assert "must be a number" in failed.stdout
    assert "cpu" in plexctl(live, "top").stdout
    assert plexctl(live, "explain", "abc").returncode == 1


JUDGE = """
import json, sys
sample = json.load(sys.stdin)
printed = open("input/stdout").read().strip()
print(json.dumps({"score": printed == sample["reference"], "detail": f"it printed {printed}"}))
"""


def test_own_programs_are_added_used_and_removed_by_command_and_client(
    live: LiveCluster, job: plex.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "run.sh").write_text(
        '#!/bin/sh\npython3 -c \'import json; exec(json.load(open("sample.json"))["text"])\'\n'
    )
    (tmp_path / "sample.json").write_text('{"text": "print(6 * 7)", "reference": "42"}')
    run = ["--stage", "run:cpu=1,timeout=30s,mem=256MiB,untrusted:./run.sh"]
    judge = ["--stage", "judge:cpu=1,timeout=30s:python3 judge.py"]
    added = plexctl(live, "add", "answers", *run, *judge)
    assert added.returncode == 0, added
    tested = plexctl(live, "test", "answers", "--sample", "sample.json", "--json")
    found = json.loads(tested.stdout)
    assert (found["value"], found["detail"]) == (1.0, "it printed 42"), tested
    texts = ["print(1)", "print('{\"score\": 1}')", "while True: pass"]
    scores = job.score("answers", texts[:2], references=["1", "1"])
    assert [score.value for score in scores] == [1.0, 0.0]
    (tmp_path / "own.py").write_text("def score(sample): return len(sample.text)")
    version = job.reward("lengths", tmp_path / "own.py")
    listed = json.loads(plexctl(live, "list", "--json").stdout)["programs"]
    assert {p["name"]: p["version"] for p in listed if p["version"]}.keys() == {
        "answers",
        "lengths",
    }
    assert version in {p["version"] for p in listed}
    assert [score.value for score in job.score("lengths", texts)] == [8.0, 21.0, 16.0]
    assert plexctl(live, "remove", "answers").returncode == 0
    with pytest.raises(plex.PlexError, match="no program 'answers'"):
        job.score("answers", texts)
    missing = plexctl(live, "add", "answers", "--stage", "run:cpu=1,timeout=1s:./gone.sh")
    assert missing.returncode == 2
    assert "'gone.sh', which is not there" in missing.stderr


def test_a_killed_proxy_changes_neither_own_programs_nor_the_version_of_a_batch(
    live: LiveCluster, job: plex.Job, tmp_path: Path
) -> None:
    place = tmp_path / "own.py"
    place.write_text("import time\ndef score(sample):\n    time.sleep(0.05)\n    return 1")
    job.reward("killed", place)
    first = job.score.stream("killed", [str(i) for i in range(40)])
    found = [next(first).value]
    place.write_text("def score(sample): return 2")
    job.reward("killed", place)
    os.kill(_proxy(live), signal.SIGKILL)
    found += [score.value for score in first]
    assert found == [1.0] * 40
    assert [score.value for score in job.score("killed", ["a"])] == [2.0]


def post(live: LiveCluster, path: str, body: object, *, token: str) -> tuple[int, Any]:
    """Return what a client that knows only the standard library gets."""
    place = json.loads((live.state_dir / "cluster.json").read_text())["http"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://{place}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_clients_of_sandbox_fusion_need_only_another_address(live: LiveCluster) -> None:
    code = {"code": "print(int(input()) * 2)", "language": "python", "stdin": "4"}
    status, told = post(live, "/run_code", code, token=live.token)
    assert (status, told["status"], told["run_result"]["stdout"]) == (200, "Success", "8\n")
    tests = [{"input": {"stdin": str(n)}, "output": {"stdout": str(2 * n)}} for n in range(3)]
    asked = {
        "dataset": "mine",
        "id": 1,
        "completion": f"So:\n```python\n{code['code']}\n```",
        "config": {"provided_data": {"test": tests}, "language": "python"},
    }
    status, told = post(live, "/submit", asked, token=live.token)
    assert (status, told["accepted"], len(told["tests"])) == (200, True, 3)
    status, told = post(live, "/run_code", code, token="nobody")
    assert (status, told["error"]["code"]) == (401, "unauthenticated")


@pytest.mark.timeout(900)
def test_kills_change_no_score(live: LiveCluster, job: plex.Job) -> None:
    """Each seed kills proxy, planner or a worker at a moment of its own, while two batches run."""
    programs = ["print(int(input()) * 2)", "print(0)", "print(int(input()) + 3)", "raise Oops"]
    tests = [[{"stdin": str(n), "stdout": str(2 * n)}] for n in range(len(programs))]
    expected = [1.0, 0.0, 0.0, 0.0]
    for seed in range(5 * KILLS):
        dice = random.Random(seed)
        code = job.score.submit("code_python", programs, references=tests)
        quick = job.score.submit("exact", ["a"] * 200, references=["a", "b"] * 100)
        time.sleep(dice.uniform(0, 0.5))  # noqa: TID251 - the moment of the kill
        processes = running(
            "plexsvc.reward." + dice.choice(["main", "planner", "worker"]), below=live.pid
        )
        if processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(processes), signal.SIGKILL)
        scores = code.result()
        found = [(score.value, score.verdict) for score in scores]
        assert found == [(value, "scored") for value in expected], (seed, scores)
        assert [score.value for score in quick.result()] == [1.0, 0.0] * 100, seed
        assert [score.index for score in quick.result()] == list(range(200)), seed


def _proxy(live: LiveCluster) -> int:
    (found,) = running("plexsvc.reward.main", below=live.pid)
    return found
