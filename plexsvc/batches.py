"""The rules of batches: what a batch must hold, checked alike by router, node and worker.

The router checks what it sees of a batch, the node checks a staged batch where it landed, and a
rank checks once more what could crash or hang it. No rule depends on where it is checked.
"""

# T = packed tokens, B = sequences.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from plexclient.batch import TOKEN_ID_ARRAYS
from plexclient.losses import BUILT_IN_LOSSES, find_loss
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2
from plexsvc.errors import bad_batch, bad_request

TOKENS: Final = "tokens"
CU_SEQLENS: Final = "cu_seqlens"
GRAD_ARRAY: Final = "grad_logprobs"
"""The per-token array that `backward` brings: d(loss)/d(logprob)."""

Array = npt.NDArray[np.generic]


class ModelLimits(Protocol):
    """What a batch may not exceed; 0 is no limit."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_sequence_length(self) -> int:
        """Longest sequence in tokens."""


def check_loss(name: str, arguments: Mapping[str, float], *, role: str) -> None:
    """Refuse a loss that is not built in, does not train `role`, or got a wrong argument.

    Raises:
        PlexError: `unknown_loss` or `bad_request`, saying what fits.
    """
    loss = find_loss(name)
    if loss.role != role:
        fitting = sorted(other for other, found in BUILT_IN_LOSSES.items() if found.role == role)
        raise bad_request(
            f"loss {name!r} trains a deployment in role {loss.role!r} and does not fit role "
            f"{role!r}; use {', '.join(fitting) or 'forward'}",
            loss=name,
            role=role,
        )
    for argument, value in sorted(arguments.items()):
        if argument not in loss.arguments:
            raise bad_request(
                f"loss {name!r} takes no argument {argument!r}; it takes: "
                f"{', '.join(loss.arguments) or 'none'}",
                loss=name,
            )
        if not (math.isfinite(value) and value >= 0):
            raise bad_request(
                f"argument {argument} of loss {name!r} is {value}; it must be finite and not "
                "negative",
                loss=name,
            )


def arrays_of(operation: operations_pb2.Operation, *, role: str) -> tuple[str, ...]:
    """Return the per-token arrays that `operation` reads beside `tokens` and `cu_seqlens`."""
    targets = () if role == "critic" else ("target_tokens",)
    match operation.WhichOneof("body"):
        case "forward_backward":
            return find_loss(operation.forward_backward.loss).arrays
        case "backward":
            return (*targets, GRAD_ARRAY)
        case _:
            return targets


def rules_of(model: ModelLimits, arrays: Iterable[str] = ()) -> service_pb2.BatchRules:
    """Return what a batch with the per-token `arrays` for `model` must satisfy."""
    return service_pb2.BatchRules(
        vocab_size=model.vocab_size,
        max_sequence_length=model.max_sequence_length,
        required=(TOKENS, CU_SEQLENS, *arrays),
    )


def lengths_of(cu_seqlens: Array) -> npt.NDArray[np.int64]:
    """Return the sequence lengths that boundaries `cu_seqlens[B+1]` describe."""
    return np.diff(cu_seqlens.astype(np.int64))


def check_batch(
    specs: Iterable[common_pb2.TensorSpec],
    views: Mapping[str, Array],
    rules: service_pb2.BatchRules,
) -> None:
    """Refuse a packed batch that any backend would trip over, as it came. `O(bytes)`.

    Raises:
        PlexError: `bad_batch`, naming the array and the position of the first bad value.
    """
    check_names([spec.name for spec in specs], rules.required)
    check_arrays(views, rules)


def check_arrays(views: Mapping[str, Array], rules: service_pb2.BatchRules) -> None:
    """Refuse the arrays of a packed batch that any backend would trip over. `O(bytes)`.

    Every array except `cu_seqlens[B+1]` has one entry a token. A rule whose limit is 0 is off.

    Raises:
        PlexError: `bad_batch`, naming the array and the position of the first bad value.
    """
    check_names(list(views), rules.required)
    if TOKENS not in views and CU_SEQLENS not in views:
        _check_values(views, rules)
        return
    for name in (TOKENS, CU_SEQLENS):
        if name not in views:
            _refuse(f"array {name!r} is missing; a packed batch has tokens and cu_seqlens", name)
    _check_lengths(views)
    _check_sequences(views[CU_SEQLENS], int(views[TOKENS].size), rules.max_sequence_length)
    _check_values(views, rules)


def check_names(names: Sequence[str], required: Iterable[str]) -> None:
    """Refuse a batch whose arrays have the wrong names.

    Raises:
        PlexError: `bad_batch`, naming the first array that comes twice or is missing.
    """
    for name in names:
        if names.count(name) > 1:
            _refuse(f"array {name!r} comes {names.count(name)} times; send each once", name)
    for name in required:
        if name not in names:
            have = ", ".join(sorted(names)) or "nothing"
            _refuse(f"array {name!r} is required and missing; the batch has {have}", name)


def _check_lengths(views: Mapping[str, Array]) -> None:
    num_tokens = int(views[TOKENS].size)
    for name, array in views.items():
        if array.ndim != 1:
            _refuse(f"array {name!r} has shape {array.shape}; packed arrays have one axis", name)
        if name != CU_SEQLENS and array.size != num_tokens:
            found = f"array {name!r} has {array.size} entries, tokens has {num_tokens}"
            _refuse(f"{found}; per-token arrays must be equally long", name)


def _check_sequences(cu_seqlens: Array, num_tokens: int, max_length: int) -> None:
    if cu_seqlens.dtype.kind != "i" or cu_seqlens.size < 2:
        found = f"{cu_seqlens.size} entries of {cu_seqlens.dtype}"
        _refuse(f"cu_seqlens has {found}; give B+1 >= 2 integers", CU_SEQLENS)
    if int(cu_seqlens[0]) != 0:
        _refuse(f"cu_seqlens starts at {cu_seqlens[0]}; it must start at 0", CU_SEQLENS, 0)
    if int(cu_seqlens[-1]) != num_tokens:
        found = f"cu_seqlens ends at {cu_seqlens[-1]}, the batch has {num_tokens} tokens"
        _refuse(f"{found}; they must be equal", CU_SEQLENS, cu_seqlens.size - 1)
    lengths_B = lengths_of(cu_seqlens)  # noqa: N806 - shape suffix
    _refuse_first(lengths_B <= 0, CU_SEQLENS, "sequence {at} is empty or runs backwards")
    if max_length:
        text = f"sequence {{at}} is longer than the model's {max_length} tokens; cut it"
        _refuse_first(lengths_B > max_length, CU_SEQLENS, text)


def _check_values(views: Mapping[str, Array], rules: service_pb2.BatchRules) -> None:
    for name, array in views.items():
        if array.dtype.kind == "f":
            text = f"array {name!r} is {{value}} at position {{at}}; send finite numbers"
            _refuse_first(~np.isfinite(_flat(array)), name, text, _flat(array))
        if name in TOKEN_ID_ARRAYS:
            _check_token_ids(name, array, rules.vocab_size)


def _check_token_ids(name: str, array: Array, vocab_size: int) -> None:
    if array.dtype.kind not in "iu":
        _refuse(f"array {name!r} is {array.dtype}; token ids are integers (I32 or I64)", name)
    flat: npt.NDArray[Any] = _flat(array)
    bad = flat < 0
    if vocab_size:
        bad |= flat >= vocab_size
    text = f"array {name!r} is {{value}} at position {{at}}; ids lie in [0, {vocab_size or 'V'})"
    _refuse_first(bad, name, text, flat)


def _flat(array: Array) -> npt.NDArray[Any]:
    return array.reshape(-1)


def _refuse_first(
    bad: npt.NDArray[np.bool_], name: str, text: str, values: npt.NDArray[Any] | None = None
) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        value = None if values is None else values[at]
        _refuse(text.format(at=at, value=value), name, at)


def _refuse(message: str, array: str, position: int | None = None) -> NoReturn:
    facts: dict[str, object] = {"array": array}
    if position is not None:
        facts["position"] = position
    raise bad_batch(f"batch refused: {message}", **facts)
