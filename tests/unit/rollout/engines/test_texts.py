"""Texts of a model: what its tokenizer and its chat template make of prompts, and of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.engines import texts
from plexsvc.rollout.engines.model_dir import read_model_dir
from plexsvc.rollout.engines.texts import Pieces, Texts
from tests.rigs.tiny_models import ALPHABET, SPECIALS, make_qwen3

HI = {"role": "user", "content": "hi"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_qwen3(tmp_path / "model", seed=1)


def ids(text: str) -> list[int]:
    return [len(SPECIALS) + ALPHABET.index(letter) for letter in text]


def encoded(model: Path, **prompt: str) -> list[int]:
    asked = operations_pb2.Prompt(**prompt)  # type: ignore[arg-type]
    return list(Texts(read_model_dir(model)).encode(asked, texts=False).token_ids)


def test_a_text_is_its_tokens_and_a_chat_is_what_the_template_writes(model: Path) -> None:
    assert encoded(model, text="1+2=") == ids("1+2=")
    chat = json.dumps({"messages": [HI, {"role": "assistant", "content": "yes"}, HI]})
    assert encoded(model, chat=chat) == ids("user: hi. assistant: yes. user: hi. assistant: ")


def test_variables_of_a_template_are_given_to_it_and_its_function_is_not_told_what_to_do(
    model: Path,
) -> None:
    (model / "chat_template.jinja").write_text("{{ 1 if enable_thinking else 2 }}")
    for is_on, written in (True, "1"), (False, "2"):
        kwargs = {"enable_thinking": is_on}
        assert encoded(model, chat=json.dumps({"messages": [HI], "kwargs": kwargs})) == ids(written)
    for name in ("tokenize", "chat_template", "self", "return_dict", "messages"):
        with pytest.raises(PlexError) as refused:
            encoded(model, chat=json.dumps({"messages": [HI], "kwargs": {name: True}}))
        assert refused.value.code is ErrorCode.BAD_REQUEST


def test_token_ids_are_told_with_the_text_of_each(model: Path) -> None:
    asked = operations_pb2.Prompt(token_ids=[*ids("1+"), 1])
    found = Texts(read_model_dir(model)).encode(asked, texts=True)
    assert found == operations_pb2.Prompt(token_ids=asked.token_ids, texts=["1", "+", "<eos>"])


@pytest.mark.parametrize("chat", ["no json", "[]", "{}", json.dumps({"messages": [3]})])
def test_a_chat_that_the_template_cannot_read_is_refused(model: Path, chat: str) -> None:
    (model / "chat_template.jinja").write_text("{{ messages[0]['content']['x']['y'] }}")
    with pytest.raises(PlexError) as refused:
        encoded(model, chat=chat)
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_a_template_that_loops_is_ended_and_others_are_written_then(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "RENDER_S", 0.1)
    again = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    (model / "chat_template.jinja").write_text("{% if loops %}" + again + "{% endif %}1")
    made = Texts(read_model_dir(model))

    def encode(*, loops: bool) -> list[int]:
        chat = json.dumps({"messages": [HI], "kwargs": {"loops": loops}})
        return list(made.encode(operations_pb2.Prompt(chat=chat), texts=False).token_ids)

    with pytest.raises(PlexError, match=r"takes more than 0\.1 s") as refused:
        encode(loops=True)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    monkeypatch.undo()
    assert encode(loops=False) == ids("1")


def test_a_model_without_tokenizer_or_template_says_so(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(PlexError, match="chat template"):
        encoded(model, chat=json.dumps({"messages": [HI]}))
    (model / "tokenizer.json").unlink()
    with pytest.raises(PlexError, match=r"tokenizer\.json, which is not there"):
        encoded(model, text="1")


def test_each_token_has_its_text_and_special_ones_have_none(model: Path) -> None:
    texts = Texts(read_model_dir(model))
    had = operations_pb2.Prompt(token_ids=ids("12"), generated=ids("3"))
    request = rollout_pb2.InstanceRequest(prompt=had)
    made = [*ids("4+"), 1, *ids("5")]
    assert texts.pieces(request).of(made) == ["4", "+", "", "5"]
    request.sampling.special_texts = True
    assert texts.pieces(request).of(made) == ["4", "+", "<eos>", "5"]
    assert texts.pieces(request).alone([1, *ids("5")]) == ["<eos>", "5"]


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"Ã": 0, "¤": 1, "a": 2}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    assert Pieces(tokenizer, {}, [2]).of([2, 0, 1, 2]) == ["a", "", "ä", "a"]
