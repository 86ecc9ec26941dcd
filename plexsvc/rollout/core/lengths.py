"""Expected lengths of answers, by prompt, from the epochs before (RLHFless, section 4.3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

NEWEST: Final = 0.5
"""What the latest epoch counts for; 1: it alone (`benchmarks-rollout.md`)."""

MAX_PROMPTS: Final = 262_144
"""Prompts that are remembered; the one not seen for longest goes first."""


class LengthHistory:
    """Moving average of the lengths of each prompt's samples.

    >>> history = LengthHistory(newest=0.5)
    >>> history.expect(b"p", reference=90)
    90
    >>> history.observe(b"p", [100, 200]); history.observe(b"p", [250])
    >>> history.expect(b"p", reference=90)
    200
    """

    def __init__(self, *, newest: float = NEWEST, max_prompts: int = MAX_PROMPTS) -> None:
        assert 0 < newest <= 1, newest
        self._newest, self._max_prompts = newest, max_prompts
        self._means: OrderedDict[bytes, float] = OrderedDict()

    @property
    def means(self) -> Mapping[bytes, float]:
        """Return what is remembered of each prompt, the one not seen for longest first."""
        return self._means

    def restore(self, means: Mapping[bytes, float]) -> None:
        """Go on from what another has remembered, the oldest first; more than fits is forgotten.

        >>> history = LengthHistory(max_prompts=2)
        >>> history.restore({b"p": 1.0, b"q": 2.0, b"r": 3.0}); list(history.means)
        [b'q', b'r']
        """
        self._means.update(means)
        while len(self._means) > self._max_prompts:
            self._means.popitem(last=False)

    def observe(self, prompt: bytes, lengths: Sequence[int]) -> None:
        """Take in the lengths of a prompt's samples; `prompt` is any name of it."""
        mean = sum(lengths) / len(lengths)
        before = self._means.pop(prompt, mean)
        self._means[prompt] = self._newest * mean + (1 - self._newest) * before
        if len(self._means) > self._max_prompts:
            self._means.popitem(last=False)

    def expect(self, prompt: bytes, *, reference: int) -> int:
        """Return a prompt's expected length; before its first epoch that of its reference."""
        return round(self._means.get(prompt, reference))

    def expect_all(
        self, prompts: Sequence[bytes], references: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the expected lengths of prompts; those not seen yet get that of their reference.

        Without `references` they get the mean of the others; empty before the first of them is
        known.

        >>> history = LengthHistory()
        >>> history.expect_all([b"p", b"q"])
        ()
        >>> history.observe(b"p", [100]); history.expect_all([b"p", b"q"])
        (100, 100)
        >>> history.expect_all([b"p", b"q"], [7, 8])
        (100, 8)
        """
        if references:
            pairs = zip(prompts, references, strict=False)
            return tuple(self.expect(prompt, reference=length) for prompt, length in pairs)
        known = [self._means[prompt] for prompt in prompts if prompt in self._means]
        if not known:
            return ()
        reference = round(fmean(known))
        return tuple(self.expect(prompt, reference=reference) for prompt in prompts)
