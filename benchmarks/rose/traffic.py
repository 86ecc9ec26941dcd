"""Traffic of serving engines: requests of a trace, or of a generator with stated statistics."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from plexsvc.errors import ErrorCode, PlexError

SECOND_US: Final = 1_000_000
BLOCK: Final = 512
"""Tokens of a prefix block of Mooncake's traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a serving engine."""

    at_us: int
    prompt_tokens: int
    answer_tokens: int
    fresh_tokens: int
    """Of the prompt, without what earlier requests have computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Statistics of requests; the defaults are those of Azure's conversations of 2023.

    That trace has 5.53 requests a second for 58 minutes. The number in a minute varies by 0.22 of
    its mean; within one arrivals are nearly independent (intervals vary by 1.09 of their mean).
    Prompts have a median of 1,020 tokens, spread by 0.98 of their logarithm, and 95 % are below
    4,083; answers a median of 129, spread by 0.85.
    """

    rate: float = 5.53
    """Requests a second."""
    minute_cv: float = 0.22
    prompt_median: float = 1020
    prompt_sigma: float = 0.98
    most_prompt: int = 4100
    answer_median: float = 129
    answer_sigma: float = 0.85
    most_answer: int = 1000

    def draw(self, *, seconds: int, seed: int) -> list[Request]:
        """Return the requests of so long, in order."""
        dice = np.random.default_rng(seed)
        made: list[Request] = []
        for minute in range(-(-seconds // 60)):
            level = dice.gamma(1 / self.minute_cv**2, self.minute_cv**2)
            count = int(dice.poisson(self.rate * 60 * level))
            at_s = np.sort(dice.uniform(60 * minute, 60 * (minute + 1), count))
            prompts = self._lengths(dice, count, self.prompt_median, self.prompt_sigma)
            answers = self._lengths(dice, count, self.answer_median, self.answer_sigma)
            made += [
                Request(
                    at_us=round(at * SECOND_US),
                    prompt_tokens=(tokens := min(round(prompt), self.most_prompt)),
                    answer_tokens=min(round(answer), self.most_answer),
                    fresh_tokens=tokens,
                )
                for at, prompt, answer in zip(at_s, prompts, answers, strict=True)
            ]
        return [one for one in made if one.at_us < seconds * SECOND_US]

    @staticmethod
    def _lengths(dice: np.random.Generator, count: int, median: float, sigma: float) -> list[float]:
        drawn: list[float] = np.exp(dice.normal(np.log(median), sigma, count)).tolist()
        return [max(1.0, one) for one in drawn]


def read_traffic(path: Path) -> list[Request]:
    """Return the requests of a trace of the Azure or Mooncake kind (`.csv.gz`).

    Of Mooncake's, blocks that an earlier request had are taken for computed.

    Raises:
        PlexError: `bad_request` with file and line.
    """
    made: list[Request] = []
    known: set[str] = set()
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            made.extend(_request(row, known) for row in csv.DictReader(file))
    except (OSError, UnicodeDecodeError, KeyError, ValueError) as error:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{path}: line {len(made) + 2} is no request of an Azure or Mooncake trace: {error!r}",
            file=str(path),
        ) from error
    return sorted(made, key=lambda one: one.at_us)


def _request(row: dict[str, str], known: set[str]) -> Request:
    if "context_tokens" in row:
        prompt, answer = int(row["context_tokens"]), int(row["generated_tokens"])
        at_us, hit = round(float(row["t_s"]) * SECOND_US), 0
    else:
        prompt, answer = int(row["input_tokens"]), int(row["output_tokens"])
        at_us, blocks = int(row["timestamp_ms"]) * 1000, row["hash_ids"].split()
        hit = BLOCK * next((i for i, one in enumerate(blocks) if one not in known), len(blocks))
        known |= set(blocks)
    prompt = max(1, prompt)
    return Request(
        at_us=at_us,
        prompt_tokens=prompt,
        answer_tokens=max(1, answer),
        fresh_tokens=max(1, prompt - hit),
    )


def faster(requests: Sequence[Request], factor: float) -> list[Request]:
    """Return the same requests in another time: traffic is scaled in rate, never in shape."""
    return [replace(one, at_us=round(one.at_us / factor)) for one in requests]
