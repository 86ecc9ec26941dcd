"""Texts of a model: prompts and chats as token ids, and tokens as pieces of text.

They are read here, in a process of the deployment, because tokenizer and chat template come with
the tenant's model: one that hangs or crashes hurts nobody else.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NoReturn

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc import paths
from plexsvc.errors import PlexError, bad_request
from plexsvc.rollout.engines.model_dir import ModelDir
from plexsvc.rollout.engines.stopping import SpecialTokens, special_tokens

MAX_TOKENIZER_BYTES: Final = 256 << 20
"""Largest `tokenizer.json` that is read; those of large vocabularies have some 30 MiB."""

RENDER_S: Final = 10.0
"""How long a chat template may take to write one chat."""

CONTEXT_TOKENS: Final = 8
"""Tokens of a prompt that decide how the text after it begins."""


@dataclass(slots=True)
class Pieces:
    """Text of one sample, token by token; special tokens have none unless `keeps_special`."""

    tokenizer: Tokenizer
    special: SpecialTokens
    prompt: Sequence[int]
    keeps_special: bool = False
    _stream: DecodeStream = field(init=False)

    def __post_init__(self) -> None:
        words = [token for token in self.prompt[-CONTEXT_TOKENS:] if token not in self.special]
        self._stream = DecodeStream(ids=words, skip_special_tokens=True)

    def of(self, tokens: Sequence[int]) -> list[str]:
        """Return the text that each token completes; "" while a character is incomplete."""
        return [
            (self.special[token][0] if self.keeps_special else "")
            if token in self.special
            else self._stream.step(self.tokenizer, token) or ""
            for token in tokens
        ]

    def alone(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token by itself, special ones included."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]


class Texts:
    """Tokenizer and chat template of a model directory, read when first needed."""

    def __init__(self, model: ModelDir) -> None:
        self.model = model
        self._lock = threading.Lock()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            PlexError: `bad_request` for a model without one, or with one that is too large.
        """
        if self.model.tokenizer is None:
            raise bad_request(
                f"texts need {self.model.path}/tokenizer.json, which is not there; use token ids"
            )
        try:
            data = paths.read_bounded(self.model.tokenizer, most_bytes=MAX_TOKENIZER_BYTES)
        except (OSError, ValueError) as error:
            raise bad_request(
                f"{self.model.path}/tokenizer.json cannot be read: {error}"
            ) from error
        return Tokenizer.from_buffer(data)

    @cached_property
    def special(self) -> SpecialTokens:
        """Return the tokenizer's special tokens."""
        return special_tokens(self.tokenizer)

    def encode(self, prompt: operations_pb2.Prompt, *, texts: bool) -> operations_pb2.Prompt:
        """Return token ids: of a chat, of a text with those that the model puts around it, or them.

        With `texts` comes the text of each; together they are the prompt's.

        Raises:
            PlexError: `bad_request` for what the tokenizer or the chat template cannot read.
        """
        with self._lock:
            if prompt.chat:
                text = self._rendered(prompt.chat)
                ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            else:
                ids = list(prompt.token_ids) or self.tokenizer.encode(prompt.text).ids
            encoded = operations_pb2.Prompt(token_ids=ids)
            if texts:
                encoded.texts.extend(Pieces(self.tokenizer, self.special, (), True).of(ids))
            return encoded

    def pieces(self, request: rollout_pb2.InstanceRequest) -> Pieces:
        """Return what reads a sample's tokens, those that it came with already read."""
        prompt, keeps = request.prompt, request.sampling.special_texts
        made = Pieces(self.tokenizer, self.special, prompt.token_ids, keeps)
        made.of(prompt.generated)
        return made

    @cached_property
    def template(self) -> Any:
        """Return the tokenizer that has the chat template."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(self.model.path))

    def _rendered(self, chat: str) -> str:
        """Return a chat as the model's template writes it, up to where its answer begins."""
        try:
            asked = json.loads(chat)
            write, kwargs = self.template.apply_chat_template, asked.get("kwargs", {})
            if reserved := kwargs.keys() & inspect.signature(write).parameters.keys():
                _refuse_variable(min(reserved))
            with _interrupted_after(RENDER_S):
                written = write(
                    asked["messages"],
                    tools=asked.get("tools"),
                    add_generation_prompt=True,
                    tokenize=False,
                    **kwargs,
                )
            return str(written)
        except PlexError:
            raise
        except Exception as error:
            raise bad_request(
                f"the model's chat template cannot read these messages: {error}"
            ) from error


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block, between two steps of Python, if it takes longer.

    A template is compiled to Python, so its loops end that way; one long step of it does not.
    """
    thread, lock = ctypes.c_ulong(threading.get_ident()), threading.Lock()
    is_over = False

    def interrupt() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeoutError))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(f"it takes more than {seconds:g} s") from error
    finally:
        timer.cancel()
        with lock:
            is_over = True


def _refuse_variable(name: str) -> NoReturn:
    raise bad_request(
        f"chat_template_kwargs: {name!r} is no variable of a chat template",
        field="chat_template_kwargs",
    )
