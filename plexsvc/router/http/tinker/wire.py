"""Batches and answers of the Tinker SDK: as protobuf, or as the JSON that older ones send."""

# N = datums, T = their packed tokens.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from plexclient.wire.v1 import tinker_pb2 as pb
from plexsvc.errors import bad_batch, bad_request
from plexsvc.router.http.tinker import losses

PROTOBUF: Final = "application/x-protobuf"
_DTYPES: Final[Mapping[int, Any]] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_INT32: np.dtype("<i4"),
}
_NAMES: Final = {"float32": pb.DTYPE_FLOAT32, "int64": pb.DTYPE_INT64}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPass:
    """A forward, or a forward and backward, of packed datums."""

    loss: str
    arguments: Mapping[str, float]
    is_forward: bool
    arrays: Mapping[str, Array]
    """What the service's batch has, and what the loss reads."""

    @property
    def bounds(self) -> Array:
        """Where datums begin and end: `[N+1]`."""
        return self.arrays["cu_seqlens"]


def request_of(body: bytes) -> pb.ForwardBackwardRequest:
    """Return a request that came as protobuf.

    Raises:
        PlexError: `bad_request`.
    """
    try:
        return pb.ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise bad_request(f"the body is no ForwardBackwardRequest: {error}") from error


def request_of_json(asked: Mapping[str, Any], *, is_forward: bool) -> pb.ForwardBackwardRequest:
    """Return a request that came as JSON.

    Raises:
        PlexError: `bad_request`.
    """
    given: Any = asked.get("forward_input" if is_forward else "forward_backward_input")
    try:
        found = pb.ForwardBackwardRequest(
            model_id=asked["model_id"],
            seq_id=asked.get("seq_id") or 0,
            loss_fn=given["loss_fn"],
            loss_fn_config=given.get("loss_fn_config") or {},
            forward_only=is_forward,
        )
        for datum in given["data"]:
            made = found.data.add()
            for chunk in datum["model_input"]["chunks"]:
                if chunk.get("type", "encoded_text") != "encoded_text":
                    made.model_input.add().image.SetInParent()  # refused when its number is taken
                    continue
                tokens = _numbers(chunk["tokens"], np.dtype("<i4"))
                made.model_input.add().encoded_text.tokens = tokens.tobytes()
            for name, tensor in datum["loss_fn_inputs"].items():
                dtype = _NAMES[tensor["dtype"]]
                data = _numbers(tensor["data"], _DTYPES[dtype])
                shape = tensor.get("shape") or [data.size]
                message = pb.Tensor(dense=data.tobytes(), dtype=dtype, shape=shape)
                made.loss_fn_inputs[name].CopyFrom(message)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise bad_request(f"the body is no forward_backward request: {error!r}") from error
    return found


def _numbers(given: Any, dtype: np.dtype[Any]) -> Array:
    """Return numbers of JSON as this type; whole ones are not made of others by rounding.

    Raises:
        TypeError: they are none, or not whole where that is wanted.
    """
    found = np.asarray(given)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"numbers are wanted, not {found.ravel()[0]!r:.80}")
    made = found.astype(dtype)
    if dtype.kind == "i" and found.size and (found.dtype.kind != "i" or (made != found).any()):
        raise TypeError(f"whole numbers of {dtype} are wanted, not {found.ravel()[0]!r:.80}, ...")
    return made


def pass_of_body(body: bytes) -> PackedPass:
    """Return what a request asks for, as `request_of` and `pass_of` do."""
    return pass_of(request_of(body))


def pass_of(request: pb.ForwardBackwardRequest) -> PackedPass:
    """Return what a request asks for.

    Raises:
        PlexError: `bad_request`, `bad_batch` or `unknown_loss`, naming datum and field.
    """
    name = request.loss_fn
    config: dict[str, float | str] = dict(request.loss_fn_config)
    for field, value in request.loss_fn_config_v2.items():
        config[field] = value.text if value.WhichOneof("value") == "text" else value.number
    arguments = losses.arguments_of(name, config)
    wanted = ("target_tokens", *losses.find(name).inputs)
    if not request.data:
        raise bad_batch("data is empty; give one datum or more")
    tokens = [_tokens(datum, number) for number, datum in enumerate(request.data)]
    for number, datum in enumerate(request.data):
        _check_inputs(datum, loss=name, takes=wanted, number=number)
    arrays: dict[str, Array] = {
        "cu_seqlens": np.cumsum([0, *(len(one) for one in tokens)]).astype(np.int32),
        "tokens": np.concatenate(tokens).astype(np.int32),
    }
    for field in wanted:
        columns = [
            _column(datum, field, number=number, length=len(tokens[number]))
            for number, datum in enumerate(request.data)
        ]
        arrays[field] = np.concatenate(columns)
    if "advantages" in arrays:
        counts = arrays["advantages"] != 0 if losses.find(name).is_of_sequences else True
        arrays["mask"] = np.full(arrays["tokens"].size, counts, np.float32)
    return PackedPass(
        loss=name, arguments=arguments, is_forward=request.forward_only, arrays=arrays
    )


def _tokens(datum: pb.Datum, number: int) -> Array:
    parts = []
    for chunk in datum.model_input:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise _no_text(kind)
        given = chunk.encoded_text.tokens
        if len(given) % 4:
            raise bad_batch(f"data[{number}].model_input: {len(given)} bytes are no tokens of four")
        parts.append(np.frombuffer(given, "<i4"))
    found: Array = np.concatenate(parts) if parts else np.empty(0, np.int32)
    if not found.size:
        raise bad_batch(f"data[{number}].model_input has no tokens; give one or more")
    return found


def _no_text(kind: str | None) -> Exception:
    return bad_request(f"model_input has a chunk of type {kind!r}; only encoded_text is offered")


def _check_inputs(datum: pb.Datum, *, loss: str, takes: Sequence[str], number: int) -> None:
    """Refuse an input that the loss would not look at: the loss may be meant to depend on it."""
    for name in sorted(set(datum.loss_fn_inputs).difference(takes)):
        raise bad_batch(
            f"data[{number}].loss_fn_inputs.{name}: {loss} takes {', '.join(takes)}", array=name
        )


def _column(datum: pb.Datum, field: str, *, number: int, length: int) -> Array:
    """Return a datum's numbers of one input, one a token."""
    where = f"data[{number}].loss_fn_inputs"
    if field == "weights" and field not in datum.loss_fn_inputs:
        return np.ones(length, np.float32)
    if field not in datum.loss_fn_inputs:
        have = ", ".join(sorted(datum.loss_fn_inputs)) or "nothing"
        raise bad_batch(f"{where}: {field} is missing; it has {have}", array=field)
    tensor = datum.loss_fn_inputs[field]
    if tensor.WhichOneof("encoding") == "sparse_csr" or len(tensor.shape) > 1:
        raise bad_batch(
            f"{where}.{field} has shape {list(tensor.shape)}: several targets for a token are not "
            "offered; give one number for each token",
            array=field,
        )
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or len(tensor.dense) % dtype.itemsize:
        raise bad_batch(f"{where}.{field} is no array of float32 or int64", array=field)
    values = np.frombuffer(tensor.dense, dtype)
    if values.size != length:
        raise bad_batch(
            f"{where}.{field} has {values.size} numbers for {length} tokens; give one for each",
            array=field,
        )
    if field != "target_tokens":
        return values.astype(np.float32)
    is_ids = values.dtype.kind == "i" and not (values < 0).any() and not (values >= 2**31).any()
    if not is_ids:
        raise bad_batch(f"{where}.{field}: target tokens are whole numbers from 0", array=field)
    return values.astype(np.int32)


def output_of(
    asked: PackedPass, logprobs: npt.NDArray[np.float32], metrics: Mapping[str, float]
) -> pb.ForwardBackwardOutput:
    """Return the answer to a pass: `logprobs[T]` and the loss of each datum's tokens."""
    each = losses.LOSSES[asked.loss].each(logprobs, asked.arrays, asked.arguments)
    offsets = (asked.bounds.astype(np.int64) * 4).tobytes()
    fields = {
        name: pb.BatchedTensor(
            data=values.astype("<f4").tobytes(), offsets=offsets, dtype=pb.DTYPE_FLOAT32
        )
        for name, values in {"logprobs": logprobs, "elementwise_loss": each}.items()
    }
    told = {_METRICS[name]: value for name, value in metrics.items() if name in _METRICS}
    if asked.is_forward:
        told = {"loss:sum": float(each.astype(np.float64).sum())}
    record = pb.ArrayRecord(type_tag=_RECORD, fields=fields, num_datums=asked.bounds.size - 1)
    return pb.ForwardBackwardOutput(
        loss_fn_output_type=_RECORD, loss_fn_outputs=[record], metrics=told
    )


_RECORD: Final = "ArrayRecord"
_METRICS: Final = {
    "loss": "loss:sum",
    "tokens": "tokens:sum",
    "ratio_mean": "ratio:mean",
    "clipfrac": "clipfrac:mean",
    "kl": "kl:mean",
    "logprob_gap_mean": "logprob_gap:mean",
    "logprob_gap_max": "logprob_gap:max",
}
"""The service's metrics, by the names that say how those of several chunks are put together."""


def output_as_json(output: pb.ForwardBackwardOutput) -> dict[str, Any]:
    """Return an answer as older SDKs read it."""
    told: list[dict[str, Any]] = []
    for record in output.loss_fn_outputs:
        datums: list[dict[str, Any]] = [{} for _ in range(record.num_datums)]
        for name, tensor in record.fields.items():
            bounds = np.frombuffer(tensor.offsets, "<i8") // 4
            values = np.frombuffer(tensor.data, "<f4")
            for datum, low, high in zip(datums, bounds[:-1], bounds[1:], strict=True):
                datum[name] = _as_json(values[low:high])
        told += datums
    return {
        "loss_fn_output_type": output.loss_fn_output_type,
        "loss_fn_outputs": told,
        "metrics": dict(output.metrics),
    }


def _as_json(values: Sequence[Any] | Array) -> dict[str, Any]:
    found = np.asarray(values)
    return {"data": found.tolist(), "dtype": "float32", "shape": [found.size]}
