"""Packed batches: concatenated tokens with `cu_seqlens`, and per-token arrays beside them.

Position t predicts `target_tokens[t]`. A batch made of whole sequences therefore holds
`tokens = sequence[:-1]` and `target_tokens = sequence[1:]`, and every other per-token array speaks
of the target at its position: `mask[t]` is 1 where the target counts, `logprobs[t]` is the logprob
its sampler gave the target, `advantages[t]` and `weights[t]` scale its loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from plexclient.checks import of_type
from plexclient.errors import bad_batch

# T = packed tokens, B = sequences.
IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
TokenLists = Sequence[Sequence[int] | npt.NDArray[np.integer]]
TOKEN_ID_ARRAYS: Final = frozenset({"tokens", "target_tokens"})
"""Arrays whose values index the vocabulary."""

INTEGER_ARRAYS: Final = TOKEN_ID_ARRAYS | {"cu_seqlens"}


class SampleLike(Protocol):
    """What a batch needs of a sample: `logprobs` has one number for each of `tokens`."""

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """The prompt's token ids."""

    @property
    def tokens(self) -> Sequence[int]:
        """The generated token ids."""

    @property
    def logprobs(self) -> FloatArray:
        """The sampler's logprob of each of `tokens`."""

    @property
    def temperature(self) -> float:
        """What the sampler divided logits by."""

    @property
    def top_p(self) -> float:
        """The share of probability it drew from: 1 is all."""

    @property
    def top_k(self) -> int:
        """The number of tokens it drew from: 0 is all."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing else shaped the distribution it drew from."""


class Encoder(Protocol):
    """What turns text into token ids: `deployment.tokenizer` is one."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Sequences packed end to end; sequence i is `[cu_seqlens[i], cu_seqlens[i + 1])`.

    Arrays are copied, made read-only and checked when the batch is made: int32 `tokens[T]`,
    `cu_seqlens[B + 1]`, `target_tokens[T]`; float32 `[T]` the rest. `temperature` is what logits
    are divided by wherever this batch is scored or trained on.

    Raises:
        PlexError: `bad_batch`, naming the array, the sequence and what to do.
    """

    tokens: IntArray
    cu_seqlens: IntArray
    target_tokens: IntArray | None = None
    weights: FloatArray | None = None
    logprobs: FloatArray | None = None
    advantages: FloatArray | None = None
    mask: FloatArray | None = None
    returns: FloatArray | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise bad_batch(f"temperature={self.temperature!r}: it must be a number above 0")
        for name in _ARRAYS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _owned(name, value))
        _check_bounds(self.cu_seqlens, num_tokens=self.tokens.size)
        for name, array in self.arrays().items():
            if name != "cu_seqlens":
                _check_array(name, array, cu_seqlens=self.cu_seqlens)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self.cu_seqlens.size - 1

    @property
    def num_tokens(self) -> int:
        """Return T, the packed tokens."""
        return self.tokens.size

    @property
    def lengths(self) -> IntArray:
        """Return the length of each sequence."""
        return np.diff(self.cu_seqlens)

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays that are there, by name, `cu_seqlens` first."""
        found = {name: getattr(self, name) for name in _ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    def per_sequence(self, values: npt.NDArray[np.generic]) -> list[npt.NDArray[np.generic]]:
        """Return `values[T]` cut into one view a sequence."""
        return np.split(values, self.cu_seqlens[1:-1])

    def replace(self, **arrays: npt.ArrayLike) -> Batch:
        """Return a batch with the given arrays, or its temperature, changed or added."""
        return replace(self, **arrays)  # type: ignore[arg-type]  # __post_init__ converts them

    @classmethod
    def from_samples(
        cls,
        samples: Iterable[SampleLike],
        *,
        advantages: Sequence[float] | Sequence[npt.ArrayLike] | npt.NDArray[np.generic],
    ) -> Batch:
        """Return a batch of prompt + completion; `mask` is 1 where the target was generated.

        `advantages` has one entry a sample: a number for all its tokens, or one number a token.
        `logprobs` are the sampler's, and the batch takes their temperature, so that on policy every
        ratio is 1. Prompt positions hold zeros.

        Raises:
            PlexError: `bad_batch` when the numbers do not fit the samples, or these were drawn at
                different temperatures or from a part of the vocabulary.
        """
        items = list(samples)
        given: object = advantages
        if not isinstance(given, Sequence) and hasattr(given, "__array__"):
            given = advantages = np.asarray(given)  # of whatever library
        if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str):
            raise bad_batch(
                f"advantages is {advantages!r:.40}; give a list with one entry a sample",
                array="advantages",
            )
        if len(advantages) != len(items):
            raise bad_batch(
                f"{len(advantages)} advantages for {len(items)} samples; pass one entry a sample",
                array="advantages",
            )
        sequences = [[*item.prompt_tokens, *item.tokens] for item in items]
        # The last token of the prompt is the one whose target is generated first.
        starts = [max(0, len(item.prompt_tokens) - 1) for item in items]
        drops = [
            len(sequence) - 1 - start for sequence, start in zip(sequences, starts, strict=True)
        ]
        scores = [
            _per_token(advantage, count=len(item.tokens), sample=i)
            for i, (advantage, item) in enumerate(zip(advantages, items, strict=True))
        ]
        for i, item in enumerate(items):
            _per_token(
                item.logprobs, count=len(item.tokens), sample=i, name="logprobs", is_each=True
            )
        logprobs = [np.asarray(item.logprobs, np.float32) for item in items]
        ones = [np.ones(drop, np.float32) for drop in drops]
        packed = _shifted(sequences)
        return cls(
            **packed,
            mask=_placed(ones, starts=starts, sequences=sequences),
            logprobs=_placed(logprobs, starts=starts, sequences=sequences),
            advantages=_placed(scores, starts=starts, sequences=sequences),
            temperature=_common_temperature(items),
        )

    @classmethod
    def from_sequences(
        cls, sequences: TokenLists, *, prompt_lengths: Sequence[int] | None = None
    ) -> Batch:
        """Return a batch for `cross_entropy`: `weights` is 1 on targets past each prompt, else 0.

        Raises:
            PlexError: `bad_batch` for a sequence of fewer than two tokens, or a longer prompt, and
                for what is no list of lists of token ids.
        """
        sequences = _token_ids(sequences)
        prompts = [1] * len(sequences) if prompt_lengths is None else list(prompt_lengths)
        if len(prompts) != len(sequences):
            raise bad_batch(
                f"{len(prompts)} prompt lengths for {len(sequences)} sequences; pass one each"
            )
        for i, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True)):
            if not 0 <= prompt <= len(sequence):
                raise bad_batch(
                    f"prompt length {prompt} of sequence {i} is not in [0, {len(sequence)}]",
                    sequence=i,
                )
        # As in `from_samples`: position t speaks of the target t + 1.
        starts = [max(0, prompt - 1) for prompt in prompts]
        ones = [
            np.ones(max(0, len(sequence) - 1 - start), np.float32)
            for sequence, start in zip(sequences, starts, strict=True)
        ]
        packed = _shifted(sequences)
        return cls(**packed, weights=_placed(ones, starts=starts, sequences=sequences))

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[str, str]], *, tokenizer: Encoder) -> Batch:
        """Return `from_sequences` of (prompt, completion) texts, each encoded by itself."""
        pairs = [(tokenizer.encode(prompt), tokenizer.encode(answer)) for prompt, answer in texts]
        return cls.from_sequences(
            [[*prompt, *answer] for prompt, answer in pairs],
            prompt_lengths=[len(prompt) for prompt, _ in pairs],
        )


_ARRAYS: Final = (
    "cu_seqlens",
    *(field.name for field in fields(Batch) if field.name not in {"cu_seqlens", "temperature"}),
)


def pack_lengths(lengths: Iterable[int]) -> IntArray:
    """Return `cu_seqlens` of sequences of the given lengths.

    >>> pack_lengths([2, 3]).tolist()
    [0, 2, 5]
    """
    return np.cumsum([0, *lengths], dtype=np.int64).astype(np.int32)


def locate(position: int, *, cu_seqlens: IntArray) -> tuple[int, int]:
    """Return (sequence, position within it) of a packed position."""
    sequence = int(np.searchsorted(cu_seqlens, position, side="right")) - 1
    return sequence, position - int(cu_seqlens[sequence])


def _common_temperature(samples: Sequence[SampleLike]) -> float:
    """Return the temperature of all samples, each drawn from the whole distribution."""
    for i, item in enumerate(samples):
        if not item.is_plain:
            raise bad_batch(
                f"sample {i} was drawn with min_p, a penalty, a bias or a grammar, which is not "
                "the policy's distribution: its logprobs would give wrong ratios. Sample without, "
                "or train on it with from_sequences",
                sequence=i,
            )
        if item.temperature == 0 or item.top_p < 1 or item.top_k > 0:
            raise bad_batch(
                f"sample {i} was drawn with temperature={item.temperature:g}, "
                f"top_p={item.top_p:g}, top_k={item.top_k}, which is not the policy's "
                "distribution: its logprobs would give wrong ratios. Sample with a temperature "
                "above 0, top_p=1 and top_k=0, or train on it with from_sequences",
                sequence=i,
            )
    found = sorted({item.temperature for item in samples})
    if len(found) > 1:
        raise bad_batch(
            f"the samples were drawn at temperatures {', '.join(f'{t:g}' for t in found)}; make "
            "one batch of each"
        )
    return found[0] if found else 1.0


def _token_ids(sequences: object) -> list[npt.NDArray[np.integer]]:
    """Return each sequence as an array; each row of a matrix is one."""
    if isinstance(sequences, str) or not isinstance(sequences, Iterable):
        raise bad_batch(f"sequences is {sequences!r:.40}; give a list of lists of token ids")
    arrays = [np.asarray(sequence) for sequence in sequences]
    for i, array in enumerate(arrays):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise bad_batch(
                f"sequence {i} has dtype {array.dtype} and shape {array.shape}; give a list of "
                "token ids, which are integers",
                sequence=i,
            )
    return arrays


def _shifted(sequences: TokenLists) -> dict[str, Any]:
    if not sequences:
        raise bad_batch("a batch of no sequences; give at least one")
    for i, sequence in enumerate(sequences):
        if len(sequence) < 2:
            raise bad_batch(
                f"sequence {i} has {len(sequence)} tokens; it takes two for one to predict the "
                "other: leave it out",
                sequence=i,
            )
    return {
        "tokens": _joined([sequence[:-1] for sequence in sequences]),
        "target_tokens": _joined([sequence[1:] for sequence in sequences]),
        "cu_seqlens": pack_lengths(len(sequence) - 1 for sequence in sequences),
    }


def _joined(parts: TokenLists) -> npt.NDArray[np.int64]:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _placed(
    values: Sequence[npt.NDArray[np.generic]], *, starts: Sequence[int], sequences: TokenLists
) -> FloatArray:
    rows = []
    for value, start, sequence in zip(values, starts, sequences, strict=True):
        row = np.zeros(len(sequence) - 1, np.float32)
        # Without a prompt the first generated token is input alone: its number has no target.
        row[start:] = value[value.size - (row.size - start) :]
        rows.append(row)
    return np.concatenate(rows)


def _per_token(
    value: object, *, count: int, sample: int, name: str = "advantages", is_each: bool = False
) -> FloatArray:
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise bad_batch(
            f"{name} of sample {sample} are {value!r:.40}; give a number, or one for each of its "
            f"{count} generated tokens",
            array=name,
            sequence=sample,
        ) from error
    if array.ndim == 0 and not is_each:
        return np.full(count, array, np.float32)
    if array.shape != (count,):
        raise bad_batch(
            f"{name} of sample {sample} have shape {array.shape}; it has {count} generated tokens",
            array=name,
            sequence=sample,
        )
    return array


def _owned(name: str, value: npt.ArrayLike) -> npt.NDArray[np.generic]:
    """Return a read-only 1-D copy of the array's wire type."""
    array = np.asarray(value)
    is_integer = name in INTEGER_ARRAYS
    if array.ndim != 1 or array.dtype.kind not in ("iu" if is_integer else "iufb"):
        raise bad_batch(
            f"array {name!r} has dtype {array.dtype} and shape {array.shape}; give a 1-D array of "
            f"{'integers' if is_integer else 'numbers'}",
            array=name,
        )
    if is_integer and array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**31:
        raise bad_batch(
            f"array {name!r} ranges over [{array.min()}, {array.max()}]; its numbers must be in "
            "[0, 2**31)",
            array=name,
        )
    with np.errstate(over="ignore"):  # what overflows float32 is refused as not finite
        owned = array.astype(np.int32 if is_integer else np.float32)
    owned.setflags(write=False)
    return owned


def _check_bounds(cu_seqlens: IntArray, *, num_tokens: int) -> None:
    if cu_seqlens.size < 2 or cu_seqlens[0] != 0 or cu_seqlens[-1] != num_tokens:
        ends = f"[{cu_seqlens[0]} ... {cu_seqlens[-1]}]" if cu_seqlens.size else "[]"
        raise bad_batch(
            f"array 'cu_seqlens' is {ends} for {num_tokens} tokens; it must start at 0, end at "
            f"{num_tokens} and have one more entry than there are sequences",
            array="cu_seqlens",
        )
    lengths = np.diff(cu_seqlens)
    if (lengths <= 0).any():
        where = int(np.flatnonzero(lengths <= 0)[0])
        raise bad_batch(
            f"array 'cu_seqlens' gives sequence {where} the length {lengths[where]}; every "
            "sequence has at least one token",
            array="cu_seqlens",
            sequence=where,
        )


def _check_array(name: str, array: npt.NDArray[np.generic], *, cu_seqlens: IntArray) -> None:
    num_tokens = int(cu_seqlens[-1])
    if array.size != num_tokens:
        raise bad_batch(
            f"array {name!r} has {array.size} entries for {num_tokens} tokens; give one a token",
            array=name,
        )
    is_bad = ~np.isfinite(array)
    if is_bad.any():
        at = int(np.flatnonzero(is_bad)[0])
        sequence, position = locate(at, cu_seqlens=cu_seqlens)
        raise bad_batch(
            f"array {name!r} is {array[at]} at sequence {sequence}, position {position}; give a "
            "finite number everywhere, 0 where the mask is 0",
            array=name,
            sequence=sequence,
            position=position,
        )


def required(
    batch: Batch, names: Iterable[str], *, what: str
) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays an operation sends: `cu_seqlens`, `tokens` and `names`.

    Raises:
        PlexError: `bad_batch`, naming an array that is missing and what needs it.
    """
    of_type("batch", batch, Batch)
    found: Mapping[str, npt.NDArray[np.generic]] = batch.arrays()
    for name in names:
        if name not in found:
            raise bad_batch(
                f"{what} needs array {name!r}, which the batch does not have; it has "
                f"{', '.join(found)}: add it with batch.replace({name}=...)",
                array=name,
            )
    return {name: found[name] for name in ("cu_seqlens", "tokens", *names)}
