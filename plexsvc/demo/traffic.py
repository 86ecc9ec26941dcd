"""Traffic of a demo's serving engine: requests that come by chance, some seconds more of them."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self

BUSY_SHARE: Final = 0.3
BUSY_RATE: Final = 5.0
"""Of requests, this share follows the one before so many times as soon."""
PROMPT_TOKENS: Final = (8, 64)
ANSWER_TOKENS: Final = (4, 32)
FIRST_TOKEN: Final = 3
"""Token ids below are special."""
MAX_OPEN: Final = 64
"""Requests open at once; more than these wait in line."""
ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request."""

    after_s: float
    """Time since the one before, at one a second in the mean."""
    prompt: list[int]
    answer_tokens: int


def requests(seed: int, *, vocab_size: int) -> Iterator[Request]:
    """Yield requests without end; their mean distance is 1 s.

    >>> first = next(requests(0, vocab_size=30))
    >>> len(first.prompt), first.answer_tokens
    (34, 7)
    """
    dice = random.Random(seed)
    mean_s = 1.0 / (1 - BUSY_SHARE + BUSY_SHARE / BUSY_RATE)
    while True:
        rate = BUSY_RATE if dice.random() < BUSY_SHARE else 1.0
        after_s, length = mean_s * dice.expovariate(rate), dice.randrange(*PROMPT_TOKENS)
        prompt = [dice.randrange(FIRST_TOKEN, vocab_size) for _ in range(length)]
        answer_tokens = dice.randrange(*ANSWER_TOKENS)
        yield Request(after_s=after_s, prompt=prompt, answer_tokens=answer_tokens)


class Traffic:
    """Sends requests to an OpenAI application; use as a context manager."""

    def __init__(self, address: str, *, name: str, rate: float, seed: int, vocab_size: int) -> None:
        """Send `rate` requests a second in the mean to the engine called `name`."""
        self.sent = self.answered = 0
        self._address, self._name, self._rate = address, name, rate
        self._requests = requests(seed, vocab_size=vocab_size)
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._send, name="traffic")

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End when what was sent is answered."""
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with ThreadPoolExecutor(MAX_OPEN) as pool:
            for request in self._requests:
                if self._over.wait(request.after_s / self._rate):
                    return
                self.sent += 1
                pool.submit(self._ask, request)

    def _ask(self, request: Request) -> None:
        body = {"model": self._name, "prompt": request.prompt, "ignore_eos": True}
        asked = urllib.request.Request(
            f"{self._address}/completions",
            data=json.dumps(body | {"max_tokens": request.answer_tokens}).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_S) as reply:
                tokens = json.load(reply)["usage"]["completion_tokens"]
        except (OSError, ValueError, KeyError):
            return  # not answered: that is counted
        with self._lock:
            self.answered += tokens == request.answer_tokens
