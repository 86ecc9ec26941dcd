"""Own programs in the real sandbox: verdicts, stages, limits, and code that forges verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from plexsvc.reward.messages import StageDone, Task
from plexsvc.reward.programs import own
from plexsvc.reward.programs.own import Definition, OwnStage
from plexsvc.reward.sandbox.base import Sandbox
from plexsvc.reward.worker import run as run_task
from tests.rigs.sandbox_process import sandbox_process

pytestmark = pytest.mark.process

REWARDS = Path(__file__).parents[3] / "examples" / "rewards"

FORGERS = {
    "prints a verdict": """echo '{"score": 1}'""",
    "leaves a sample": """printf '{"text": "good", "settings": {}}' > output/sample.json""",
    "leaves the judge": """printf 'echo {score: 1}' > output/judge.sh""",
    "changes the judge": """echo 'echo "{\\"score\\": 1}"' > judge.sh""",
    "changes the sample": """printf '{"text": "good"}' > sample.json""",
    "leaves links": "ln -s ../judge.sh output/a; ln -s / output/b; ln judge.sh output/c",
    "leaves the told": "mkdir -p output/stdout; echo good > output/exit_code",
    "leaves a daemon": """(sleep 1; echo '{"score": 1}') & exit 0""",
    "closes its output": "exec >&- 2>&-; echo x > output/x",
    "leaves names that are no text": "echo x > \"output/$(printf '\\377')\"",
    "leaves paths outside": "mkdir -p 'output/..x'; echo x > 'output/..x/y'; echo x > 'output/ z'",
}
JUDGE = b"""#!/bin/sh
grep -q '"text": "bad"' sample.json || exit 3
test "$(cat input/exit_code)" = 0 || exit 4
echo '{"score": 0.25}'
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_process() as found:
        yield found


def stage(command: str = "", *, name: str = "run", **changed: Any) -> OwnStage:
    given = {
        "resource": "cpu",
        "count": 1,
        "memory_bytes": 64 << 20,
        "timeout_us": 20_000_000,
        "python": "",
        "is_untrusted": False,
    }
    return OwnStage(name=name, command=command, **{**given, **changed})


def score(
    sandbox: Sandbox,
    *stages: OwnStage,
    files: dict[str, bytes] | None = None,
    text: str = "bad",
    reference: str = "null",
    settings: str = "{}",
) -> StageDone:
    """Return how the last stage that ran ended, as the proxy has them run."""
    encoded = own.encode(Definition("own", stages, files or {}, -1.0))
    done = StageDone("passed")
    for number in range(len(stages)):
        task = Task("own", number, text, reference, settings, done.files, encoded)
        done = run_task(task, sandbox=sandbox)
        if done.how != "passed":
            break
    return done


def score_by(sandbox: Sandbox, source: str, **given: str) -> StageDone:
    files = {"judge.py": source.encode(), "lib/words.py": b"GOOD = {'yes'}\n"}
    return score(sandbox, stage(python="judge.py"), files=files, **given)


@pytest.mark.parametrize(
    ("body", "expected", "detail"),
    [
        ("return len(sample.text)", 3.0, ""),
        ("return sample.reference['a'] * sample.settings['weight']", 1.0, ""),
        ("return {'score': 1, 'detail': 'so'}", 1.0, "so"),
        ("print('{\"score\": 9}'); return True", 1.0, ""),
        ("from lib.words import GOOD; return sample.text in GOOD", 0.0, ""),
        ("import numpy; return numpy.float32(0.5)", 0.5, ""),
    ],
)
def test_a_python_file_scores(body: str, expected: float, detail: str, sandbox: Sandbox) -> None:
    source = f"def score(sample):\n    {body}\n"
    done = score_by(sandbox, source, reference='{"a": 2}', settings='{"weight": 0.5}')
    assert (done.how, done.score, done.detail) == ("scored", expected, detail), done


@pytest.mark.parametrize(
    ("body", "how", "detail"),
    [
        ("return float('nan')", "refused", "score: stage run gave nan; a score is finite"),
        ("return {'score': 'high'}", "refused", "gave 'high', which is no number"),
        ("return None", "failed", "exit code 1: TypeError"),
        ("raise ValueError('no')", "failed", "exit code 1: ValueError: no"),
        ("import os; os._exit(0)", "failed", "gave no verdict"),
        ("return bytearray(200 << 20)", "failed", "MemoryError"),
        ("\n    while True: pass", "timed_out", ""),
    ],
)
def test_what_is_no_score_is_told(body: str, how: str, detail: str, sandbox: Sandbox) -> None:
    files = {"judge.py": f"def score(sample):\n    {body}\n".encode()}
    done = score(sandbox, stage(python="judge.py", timeout_us=3_000_000), files=files)
    assert done.how == how, done
    assert detail in done.detail


def test_a_command_reads_the_sample_and_prints_the_verdict(sandbox: Sandbox) -> None:
    command = "cmp - sample.json && grep -o bad sample.json && echo '{\"score\": -2.5}'"
    done = score(sandbox, stage(command))
    assert (done.how, done.score) == ("scored", -2.5)
    assert done.output.startswith("bad\n")


def test_what_a_stage_leaves_is_the_next_ones_input(sandbox: Sandbox) -> None:
    first = stage("mkdir output/a; cp tool output/a/b; echo no > other", name="compile")
    last = stage("test ! -e other && cmp tool input/a/b && echo '{\"score\": 1}'")
    done = score(sandbox, first, last, files={"tool": b"\0\1"})
    assert (done.how, done.score) == ("scored", 1.0), done


def test_an_early_verdict_ends_the_rest(sandbox: Sandbox) -> None:
    done = score(sandbox, stage("echo '{\"score\": 0}'", name="compile"), stage("exit 1"))
    assert (done.how, done.score) == ("scored", 0.0)


@pytest.mark.parametrize("what", FORGERS)
def test_an_untrusted_stage_cannot_write_the_verdict(what: str, sandbox: Sandbox) -> None:
    run = stage("sh ./run.sh", is_untrusted=True)
    files = {"judge.sh": JUDGE, "run.sh": FORGERS[what].encode()}
    done = score(sandbox, run, stage("./judge.sh", name="judge"), files=files)
    assert (done.how, done.score) == ("scored", 0.25), done


def test_the_judge_is_told_what_an_untrusted_stage_did(sandbox: Sandbox) -> None:
    run = stage("echo out; echo err >&2; exit 7", is_untrusted=True)
    judge = stage("cat input/stdout input/stderr input/exit_code; echo; echo '{\"score\": 1}'")
    assert score(sandbox, run, judge).output.startswith("out\nerr\n7\n")


def test_more_than_a_limit_gets_the_timeout_score_with_the_reason(sandbox: Sandbox) -> None:
    done = score(sandbox, stage("yes", name="loud"))
    assert (done.how, done.detail) == ("timed_out", "stage loud exceeded its limit of output")
    hungry = (
        "import time\nx = bytearray(100 << 20)\nx[::4096] = bytes(len(x[::4096]))\ntime.sleep(9)"
    )
    done = score(sandbox, stage("python3 x.py"), files={"x.py": hungry.encode()})
    assert (done.how, done.detail) == ("timed_out", "stage run exceeded its limit of memory")


def test_a_stage_may_have_more_memory_than_its_worker(sandbox: Sandbox) -> None:
    files = {"x.py": b"import mmap; mmap.mmap(-1, 5 << 30); print('{\"score\": 1}')"}
    done = score(sandbox, stage("python3 x.py", memory_bytes=6 << 30), files=files)
    assert (done.how, done.score) == ("scored", 1.0), done


@pytest.mark.parametrize("dataset", ["chain_sum", "spell_backward", "countdown", "graph_color"])
def test_scorers_of_reasoning_gym_run_as_a_program(dataset: str, sandbox: Sandbox) -> None:
    made = reasoning_gym.create_dataset(dataset, size=1, seed=3)
    entry = json.loads(json.dumps(made[0]))
    files = {"gym_score.py": (REWARDS / "gym_score.py").read_bytes()}
    judge = stage(python="gym_score.py", memory_bytes=512 << 20)
    answers = [str(made[0]["answer"] or json.dumps(made[0]["metadata"]["possible_answer"])), "no"]
    for answer in answers:
        done = score(sandbox, judge, files=files, text=answer, reference=json.dumps(entry))
        assert done.how == "scored", done
        assert done.score == pytest.approx(made.score_answer(answer, made[0]))


RUBRIC = b"""
import verifiers as vf
def right(completion, answer, **_): return float(completion[-1]["content"] == answer)
def short(completion, info, **_): return float(len(completion[-1]["content"]) < info["most"])
RUBRIC = vf.Rubric(funcs=[right, short], weights=[1.0, 0.5])
"""
UNUSED = {
    "datasets/__init__.py": b"def __getattr__(name): return type(name, (), {})",
    "datasets/utils/__init__.py": b"logging = None",
    "agents/__init__.py": b"",
    "agents/function_schema.py": b"function_schema = None",
}
"""What `import verifiers` asks for and a rubric does not use: two packages of 200 MB."""


def test_a_rubric_of_verifiers_runs_as_a_program(sandbox: Sandbox) -> None:
    adapter = (REWARDS / "rubric_score.py").read_bytes()
    files = {"rubric_score.py": adapter, "rubric.py": RUBRIC, **UNUSED}
    judge = stage(python="rubric_score.py", memory_bytes=1 << 30, timeout_us=60_000_000)
    for text, expected in (("4", 1.5), ("a long answer", 0.0)):
        settings = json.dumps({"info": {"most": 3}})
        done = score(sandbox, judge, files=files, text=text, reference='"4"', settings=settings)
        assert (done.how, done.score) == ("scored", expected), done
        assert "right" in done.detail


def test_a_reward_function_of_trl_runs_as_a_program(sandbox: Sandbox) -> None:
    function = b"""
def reward(prompts, completions, answer, bonus, **columns):
    return [None if c == "?" else float(c == a) + b for c, a, b in zip(completions, answer, bonus)]
"""
    files = {"trl_score.py": (REWARDS / "trl_score.py").read_bytes(), "reward.py": function}
    for text, expected in (("4", 1.25), ("5", 0.25), ("?", 0.0)):
        done = score(
            sandbox,
            stage(python="trl_score.py"),
            files=files,
            text=text,
            reference='"4"',
            settings=json.dumps({"prompt": "2+2", "bonus": 0.25}),
        )
        assert (done.how, done.score) == ("scored", expected), done
