"""The examples' own parts: tasks, scores, the warm-up's mixture, the trainer with TRL's names."""

from __future__ import annotations

import ast
import importlib
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plexsvc.weights.random_model import ALPHABET, make_model

CODE_NAMES = ["write_choice", "write_polynomial"]
TASK_NAMES = ["chain_sum", "count_bits", "spell_backward", *CODE_NAMES]


@pytest.mark.parametrize("name", TASK_NAMES)
def test_only_the_whole_answer_scores_and_every_character_has_a_token(
    examples: Path, name: str
) -> None:
    from verifiable_tasks import TASKS

    for problem in islice(TASKS[name].problems(3), 50):
        if problem.score is not None:
            assert problem.score(problem.answer) == 1.0
            assert problem.score(problem.answer + "0") == 0.0
            assert problem.score("") == 0.0
        assert bool(problem.score) != bool(problem.tests) == bool(TASKS[name].program)
        assert set(problem.prompt + problem.answer) <= set(ALPHABET), examples
        assert len(problem.answer) < TASKS[name].max_tokens


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("name", CODE_NAMES)
def test_of_a_function_to_write_only_the_right_one_passes_its_tests(name: str) -> None:
    from verifiable_tasks import TASKS

    for problem in islice(TASKS[name].problems(3), 50):
        for answer, is_right in ((problem.answer, True), ("f=lambda x:1000", False)):
            names: dict[str, object] = {}
            exec(answer, names)
            assert problem.tests is not None
            found = [eval(test["call"], names) == test["equals"] for test in problem.tests]
            assert found == [is_right]


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("name", TASK_NAMES)
def test_training_prompts_never_repeat_a_held_out_one(name: str) -> None:
    from verifiable_tasks import HELD_OUT, TASKS

    held_out = {problem.prompt for problem in TASKS[name].held_out()}
    trained = {problem.prompt for problem in islice(TASKS[name].problems(0), 3000)}
    assert len(held_out) == HELD_OUT
    assert not held_out & trained


@pytest.mark.usefixtures("examples")
def test_an_imperfect_teacher_is_wrong_about_as_often_as_asked() -> None:
    from verifiable_tasks import TASKS, demonstrations

    task = TASKS["spell_backward"]
    pairs = list(islice(demonstrations(task, seed=0, wrong_share=0.3), 500))
    wrong = sum(prompt[:-1][::-1] != answer for prompt, answer in pairs)
    assert 0.2 < wrong / len(pairs) < 0.4


@pytest.mark.usefixtures("examples")
def test_the_warm_up_gives_most_of_a_batch_to_tasks_behind() -> None:
    from warm_up import shares

    assert shares({"a": 0.1, "b": 0.2}, goal=0.3) == {"a": 0.5, "b": 0.5}
    mixed = shares({"a": 0.1, "b": 0.5, "c": 0.6}, goal=0.3)
    assert mixed == {"a": 0.9, "b": 0.05, "c": 0.05}


@pytest.mark.usefixtures("examples")
def test_a_supervised_batch_weighs_answers_and_their_end_and_nothing_else(tmp_path: Path) -> None:
    from warm_up import next_batch

    from plexclient.tokenizer import Tokenizer

    make_model(tmp_path / "m", seed=0)
    batch = next_batch(
        {"a": iter([("12#", "34")]), "b": iter([("ab<", "ba")])},
        parts={"a": 0.5, "b": 0.5},
        sequences=2,
        tokenizer=Tokenizer(tmp_path / "m" / "tokenizer.json"),
    )
    assert batch.lengths.tolist() == [5, 5]
    assert batch.weights is not None
    assert batch.weights.sum() == pytest.approx(1.0)
    assert (batch.weights > 0).tolist() == [False, False, True, True, True] * 2
    assert batch.target_tokens is not None
    assert batch.target_tokens[-1] == 1, "the end token is taught"


def test_controllers_import_only_plexclient_of_the_service_and_no_framework(examples: Path) -> None:
    banned = {"plexsvc", "torch", "vllm", "megatron", "transformers"}
    for path in examples.glob("*.py"):
        found = ast.walk(ast.parse(path.read_text()))
        roots = {
            name.partition(".")[0]
            for node in found
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not roots & banned, path


TRL_ROWS = [{"prompt": word, "answer": word} for word in ("one", "two")]
TRL_REWARDS = np.array([0.0, 1.0, 1.0, 2.0])
TRL_LENGTHS = [2, 4, 6, 8]


@pytest.fixture
def trl(examples: Path) -> Any:
    assert (examples / "trl_trainer.py").is_file()
    return importlib.import_module("trl_trainer")


def trainer(trl: Any, **config: Any) -> Any:
    made = trl.GRPOConfig(per_device_train_batch_size=4, num_generations=2, **config)
    return trl.GRPOTrainer("model", "math", made, TRL_ROWS)


@pytest.mark.parametrize(
    ("loss_type", "shares"),
    [
        ("dapo", [20, 20, 20, 20]),
        ("bnpo", [20, 20, 20, 20]),
        ("grpo", [8, 16, 24, 32]),
        ("dr_grpo", [40, 40, 40, 40]),
    ],
)
def test_each_token_weighs_what_trl_gives_it(trl: Any, loss_type: str, shares: list[int]) -> None:
    asked = trainer(trl, loss_type=loss_type, max_completion_length=10)
    samples = [SimpleNamespace(tokens=[3] * length) for length in TRL_LENGTHS]
    deviation = np.std([0.0, 1.0], ddof=1) + 1e-4  # of either group
    expected = [-0.5 / deviation / shares[0], 0.5 / deviation / shares[1]]
    expected += [-0.5 / deviation / shares[2], 0.5 / deviation / shares[3]]
    assert asked._weights(samples, TRL_REWARDS) == pytest.approx(expected)


def test_rewards_may_keep_their_scale(trl: Any) -> None:
    samples = [SimpleNamespace(tokens=[3])] * 4
    found = trainer(trl, scale_rewards="none")._weights(samples, TRL_REWARDS)
    assert found == pytest.approx([-0.125, 0.125, -0.125, 0.125])


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("linear", [0.0, 0.5, 1.0, 0.875, 0.125]),
        ("cosine", [0.0, 0.5, 1.0, 0.961940, 0.038060]),
        ("constant", [0.0, 0.5, 1.0, 1.0, 1.0]),
    ],
)
def test_the_rate_warms_up_and_decays_as_transformers_says(
    trl: Any, name: str, rates: list[float]
) -> None:
    asked = trainer(trl, learning_rate=1.0, lr_scheduler_type=name, warmup_steps=2)
    assert [asked._lr(step, 10) for step in (0, 1, 2, 3, 9)] == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize(
    "asked", [{"beta": 0.04}, {"loss_type": "sapo"}, {"top_p": 0.9}, {"scale_rewards": "batch"}]
)
def test_what_would_be_trained_otherwise_is_refused_by_name(trl: Any, asked: Any) -> None:
    given = SimpleNamespace(**vars(trl.GRPOConfig()) | asked)
    with pytest.raises(ValueError, match=next(iter(asked))):
        trl.GRPOTrainer("model", "math", given, TRL_ROWS)


@pytest.mark.parametrize("size", [3, 8])
def test_steps_that_need_other_groups_or_more_rows_are_refused(trl: Any, size: int) -> None:
    made = trl.GRPOConfig(per_device_train_batch_size=size, num_generations=2)
    with pytest.raises(ValueError, match=f"{size} completions a step"):
        trl.GRPOTrainer("model", "math", made, TRL_ROWS)


def test_messages_need_a_tokenizer(trl: Any) -> None:
    asked = trainer(trl)
    with pytest.raises(ValueError, match="processing_class"):
        asked._prompt([{"role": "user", "content": "one"}])
    asked.tokenizer = SimpleNamespace(apply_chat_template=lambda given, **_: [1, 2, len(given)])
    assert asked._prompt([{"role": "user", "content": "one"}]) == [1, 2, 1]


def test_functions_are_called_as_trl_calls_them(trl: Any) -> None:
    told: dict[str, Any] = {}

    def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
        told.update(prompts=prompts, completions=completions, **columns)
        return [1.0, None]

    asked = trainer(trl)
    asked.rewards = [reward, reward]
    samples = [SimpleNamespace(text="a", tokens=[5]), SimpleNamespace(text="b", tokens=[6, 7])]
    assert list(asked._score(None, samples, TRL_ROWS)) == [2.0, 0.0]
    assert told == {
        "prompts": ["one", "two"],
        "completions": ["a", "b"],
        "answer": ["one", "two"],
        "completion_ids": [[5], [6, 7]],
    }


def test_it_fits_on_a_few_pages(examples: Path) -> None:
    assert len((examples / "trl_trainer.py").read_text().splitlines()) <= 200
