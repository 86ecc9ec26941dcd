"""Stop strings: finds the token that completes one in a sample decoded so far.

The whole sample is decoded, tokens it had before it came to this engine included, so a stop string
that spans a migration is found. Tokens stay in the answer; what follows the completing one goes.
A special token counts whole: `<pad>` is met by a stop string that has all of it, never by `a`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

FIRST_PRIVATE: Final = 0xF0000
"""Of the code points that no text uses."""


SpecialTokens = dict[int, tuple[str, str]]
"""Token → its text, and the character it reads as."""


class Decoder(Protocol):
    """Turns tokens into text, one at a time."""

    def step(self, token: int) -> str | None:
        """Return the text that `token` completes, None while it is undecidable."""

    def spell(self, stop: str) -> str:
        """Return a stop string as it reads in the text of `step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A stop string was completed by the token at `kept - 1` of those given."""

    kept: int
    text: str


class StopWatcher:
    """Watches one sample for any of `stops`."""

    def __init__(self, stops: Sequence[str], decoder: Decoder, *, min_tokens: int = 0) -> None:
        self._stops = {decoder.spell(stop): stop for stop in stops}
        self._decoder = decoder
        self._min_tokens = min_tokens
        self._seen = 0
        # What of a stop string may be here already when its last character comes.
        self._keep_chars = max(map(len, self._stops)) - 1
        self._tail = ""

    def feed(self, tokens: Sequence[int]) -> Stop | None:
        """Return the first completed stop string within `tokens`, None when there is none."""
        for index, token in enumerate(tokens):
            self._seen += 1
            text = self._decoder.step(token)
            if not text:
                continue
            self._tail += text
            hit = next((stop for spelt, stop in self._stops.items() if spelt in self._tail), None)
            self._tail = self._tail[-self._keep_chars :] if self._keep_chars else ""
            if hit is not None and self._seen >= self._min_tokens:
                return Stop(kept=index + 1, text=hit)
        return None


class TokenizerDecoder:
    """A Hugging Face tokenizer's stream: withholds text until its bytes are whole characters.

    A special token reads as one character that no text has.
    """

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        """Read with `special`, which is `special_tokens(tokenizer)`: it serves many samples."""
        self._tokenizer = tokenizer
        self._special = special
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str | None:
        """Return the text that `token` completes."""
        if token in self._special:
            return self._special[token][1]
        text: str | None = self._stream.step(self._tokenizer, token)
        return text

    def spell(self, stop: str) -> str:
        """Return `stop` with each special token in it as its one character, longest first."""
        for word, mark in sorted(self._special.values(), key=lambda pair: -len(pair[0])):
            stop = stop.replace(word, mark)
        return stop


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Return a tokenizer's special tokens."""
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    special = [(token, str(word.content)) for token, word in added if word.special]
    return {
        token: (text, chr(FIRST_PRIVATE + place)) for place, (token, text) in enumerate(special)
    }
