"""The controllers' own parts: tasks, scores, the warm-up's mixture."""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path

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
