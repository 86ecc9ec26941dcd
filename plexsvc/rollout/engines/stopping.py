"""Stop strings: decodes a sample's tokens as they come and finds the token that completes one.

The whole sample is decoded, tokens it had before it came to this engine included, so a stop string
that spans a migration is found. Tokens stay in the answer; what follows the completing one goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Decoder(Protocol):
    """Turns tokens into text, one at a time."""

    def step(self, token: int) -> str | None:
        """Return the text that `token` completes, None while it is undecidable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A stop string was completed by the token at `kept - 1` of those given."""

    kept: int
    text: str


class StopWatcher:
    """Watches one sample for any of `stops`."""

    def __init__(self, stops: Sequence[str], decoder: Decoder, *, min_tokens: int = 0) -> None:
        self._stops = tuple(stops)
        self._decoder = decoder
        self._min_tokens = min_tokens
        self._seen = 0
        self._keep_chars = max(map(len, stops)) - 1
        self._tail = ""

    def feed(self, tokens: Sequence[int]) -> Stop | None:
        """Return the first completed stop string within `tokens`, None when there is none."""
        for index, token in enumerate(tokens):
            self._seen += 1
            text = self._decoder.step(token)
            if not text:
                continue
            self._tail += text
            hit = next((stop for stop in self._stops if stop in self._tail), None)
            self._tail = self._tail[-self._keep_chars :] if self._keep_chars else ""
            if hit is not None and self._seen >= self._min_tokens:
                return Stop(kept=index + 1, text=hit)
        return None


class TokenizerDecoder:
    """A Hugging Face tokenizer's stream: withholds text until its bytes are whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)

    def step(self, token: int) -> str | None:
        """Return the text that `token` completes."""
        text: str | None = self._stream.step(self._tokenizer, token)
        return text
