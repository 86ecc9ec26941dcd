"""Training deployments (actor, critic, reference) and their calls."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plexclient.batch import Batch, FloatArray, required
from plexclient.calls import call
from plexclient.checks import of_type, real
from plexclient.deployment import Deployment, Result, facts
from plexclient.errors import bad_batch, bad_request
from plexclient.losses import find_loss
from plexclient.results import Answer, ForwardResult, LossResult, ValueResult, facts_of, gather
from plexclient.syncing import Synced
from plexclient.wire.v1 import operations_pb2

Operation = operations_pb2.Operation

MAX_POSITION_CHARS: Final = 16 << 10


class Loadable(Deployment):
    """A deployment whose weights can be read from a directory of the cluster's file system."""

    @call
    def load(
        self, path: str | Path, *, optimizer: bool = False, position: object = None
    ) -> Future[Answer]:
        """Load Hugging Face safetensors, and the optimizer state that `save` wrote if asked.

        `position` is as that of `step`.
        """
        body = Operation(
            load=operations_pb2.Load(path=str(path), optimizer=optimizer),
            position=_position("load", position),
        )
        return self._run(body, read=facts)


class Scorer(Deployment):
    """A deployment that scores the targets of a batch."""

    @call
    def forward(self, batch: Batch, *, temperature: float | None = None) -> Future[ForwardResult]:
        """Return the logprob of each target; logits are divided by the batch's temperature.

        Another `temperature` may be given.

        Raises:
            PlexError: `bad_batch` for a batch without `target_tokens`.
        """
        divisor = _temperature(temperature, batch)
        body = Operation(forward=operations_pb2.Forward(temperature=divisor))
        arrays = required(batch, ["target_tokens"], what="forward")

        async def read(result: Result) -> ForwardResult:
            logprobs = gather(
                await self._shards(result), cu_seqlens=batch.cu_seqlens, name="logprobs"
            )
            return ForwardResult(**_common(result), logprobs=logprobs)

        return self._run(body, arrays=arrays, read=read)


class Trained(Loadable):
    """A deployment with gradients and an optimizer. Gradients accumulate until `step`."""

    @call
    def step(
        self,
        *,
        lr: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        clip_grad_norm: float | None = None,
        decay_vectors: bool | None = None,
        position: object = None,
    ) -> Future[Answer]:
        """Apply the accumulated gradients; what is not given keeps the deployment's `AdamW`.

        `position` is where you are in your data, anything that JSON can carry in 16 KiB. It is kept
        with the state that the step leaves, and its checkpoint.

        Raises:
            PlexError: `bad_request` for a position that is not JSON, or too long.
        """
        given = {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": weight_decay,
            "clip_grad_norm": clip_grad_norm,
        }
        step = operations_pb2.Step(decay_vectors=decay_vectors)
        for name, value in given.items():
            if value is not None:
                setattr(step, name, real(f"step: {name}", value))
        return self._run(Operation(step=step, position=_position("step", position)), read=facts)

    @call
    def zero_grad(self) -> Future[Answer]:
        """Drop the accumulated gradients; also mends a window that a failure broke."""
        return self._run(Operation(zero_grad=operations_pb2.ZeroGrad()), read=facts)

    @call
    def save(self, path: str | Path, *, optimizer: bool = True) -> Future[Answer]:
        """Write the weights as Hugging Face safetensors, and the optimizer's state if asked."""
        body = Operation(save=operations_pb2.Save(path=str(path), optimizer=optimizer))
        return self._run(body, read=facts)

    @call
    def export(self, path: str | Path) -> Future[Answer]:
        """Write the weights as a Hugging Face directory: what `deploy(model=path)` takes."""
        body = Operation(export=operations_pb2.Export(path=str(path)))
        return self._run(body, read=facts)


class Actor(Trained, Scorer):
    """The policy under training."""

    @call
    def forward_backward(
        self,
        /,
        batch: Batch,
        *,
        loss: str = "ppo",
        temperature: float | None = None,
        return_logprobs: bool = False,
        **loss_args: float,
    ) -> Future[LossResult]:
        """Add the gradient of a built-in loss, a sum over tokens with per-token weights.

        `loss` and `loss_args` are those of `plexclient.losses`, where the formulas are:
        cross_entropy(), importance_sampling(), ppo(clip=0.2, clip_high=clip), cispo(the same),
        dro(beta=0.05), gspo(clip=0.0003, clip_high=0.0004). Logits are divided by the batch's
        temperature unless another is given. The policy losses report `logprob_gap_mean` and
        `logprob_gap_max`, how far the sampler's logprobs are from the policy's.

        Raises:
            PlexError: `unknown_loss`; `bad_batch` when the loss needs an array that is not there;
                `logprob_mismatch` beyond the deployment's `max_logprob_gap`.
        """
        divisor = _temperature(temperature, batch)
        body, arrays = _loss_pass(loss, loss_args, batch=batch, temperature=divisor)
        body.forward_backward.return_logprobs = return_logprobs

        async def read(result: Result) -> LossResult:
            if not return_logprobs:
                return LossResult(**_common(result), logprobs=None)
            shards = await self._shards(result)
            logprobs = gather(shards, cu_seqlens=batch.cu_seqlens, name="logprobs")
            return LossResult(**_common(result), logprobs=logprobs)

        return self._run(body, arrays=arrays, read=read)

    @call
    def backward(
        self, batch: Batch, grad_logprobs: npt.ArrayLike, *, temperature: float | None = None
    ) -> Future[Answer]:
        """Add the gradient of a loss of your own.

        `grad_logprobs[t]` is d loss / d logprob of target t. Take the logprobs from `forward` of
        the same batch at the same temperature.

        Raises:
            PlexError: `bad_batch` when `grad_logprobs` is not one finite number a token.
        """
        divisor = _temperature(temperature, batch)
        body = Operation(backward=operations_pb2.Backward(temperature=divisor))
        arrays = required(batch, ["target_tokens"], what="backward")
        arrays["grad_logprobs"] = _gradient("grad_logprobs", grad_logprobs, batch=batch)
        return self._run(body, arrays=arrays, read=facts)


class Critic(Trained):
    """A value model under training: the model's trunk under a linear head, one value a token.

    A checkpoint without `value_head.weight` (a language model's) starts the head at zero, so that
    the first values are 0; its `lm_head` is not used. `save` and `export` write the trunk and
    `value_head.weight` [1, hidden], which `load` and `deploy` read again.
    """

    @call
    def forward(self, batch: Batch) -> Future[ValueResult]:
        """Return the value at each token of `batch`."""
        body = Operation(forward=operations_pb2.Forward(temperature=1.0))

        async def read(result: Result) -> ValueResult:
            values = gather(await self._shards(result), cu_seqlens=batch.cu_seqlens, name="values")
            return ValueResult(**_common(result), values=values)

        return self._run(body, arrays=required(batch, [], what="forward"), read=read)

    @call
    def backward(self, batch: Batch, grad_values: npt.ArrayLike) -> Future[Answer]:
        """Add the gradient of a loss of your own: `grad_values[t]` is d loss / d value at token t.

        Raises:
            PlexError: `bad_batch` when `grad_values` is not one finite number a token.
        """
        body = Operation(backward=operations_pb2.Backward(temperature=1.0))
        arrays = required(batch, [], what="backward")
        arrays["grad_logprobs"] = _gradient("grad_values", grad_values, batch=batch)
        return self._run(body, arrays=arrays, read=facts)

    @call
    def forward_backward(
        self, /, batch: Batch, *, loss: str = "value_mse", **loss_args: float
    ) -> Future[LossResult]:
        """Add the gradient of a built-in value loss over the batch's `returns` and `mask`.

        `value_mse` is `0.5 * sum((value - returns)**2 * mask)`.

        Raises:
            PlexError: `unknown_loss`; `bad_batch` when the loss needs an array that is not there.
        """
        body, arrays = _loss_pass(loss, loss_args, batch=batch, temperature=1.0)

        async def read(result: Result) -> LossResult:
            return LossResult(**_common(result), logprobs=None)

        return self._run(body, arrays=arrays, read=read)


class Reference(Loadable, Synced, Scorer):
    """A model that only scores; it holds no gradients and no optimizer state."""


def _loss_pass(
    loss: str, given: dict[str, float], *, batch: Batch, temperature: float
) -> tuple[Operation, dict[str, npt.NDArray[np.generic]]]:
    """Return the operation of a built-in loss, and the arrays of `batch` that it reads."""
    arrays = required(batch, find_loss(loss).arrays, what=f"loss {loss!r}")
    arguments = {name: real(f"loss {loss!r}: {name}", x) for name, x in given.items()}
    body = operations_pb2.ForwardBackward(loss=loss, loss_args=arguments, temperature=temperature)
    return Operation(forward_backward=body), arrays


def _gradient(name: str, values: npt.ArrayLike, *, batch: Batch) -> FloatArray:
    array = np.array(values, np.float32)
    if array.shape != (batch.num_tokens,) or not np.isfinite(array).all():
        raise bad_batch(
            f"{name} has shape {array.shape} and {np.count_nonzero(~np.isfinite(array))} "
            "numbers that are not finite; give one finite number for each of the "
            f"{batch.num_tokens} tokens",
            array=name,
        )
    return array


def _position(what: str, given: object) -> str:
    try:
        text = "" if given is None else json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_request(f"{what}: position {given!r:.40} is not JSON: {error}") from error
    if len(text) > MAX_POSITION_CHARS:
        raise bad_request(
            f"{what}: position has {len(text)} characters of JSON; at most {MAX_POSITION_CHARS}"
        )
    return text


def _temperature(given: float | None, batch: Batch) -> float:
    of_type("batch", batch, Batch)
    value = batch.temperature if given is None else given
    if real("temperature", value) <= 0:
        raise bad_request(f"temperature={value!r}: it must be above 0")
    return float(value)


def _common(result: Result) -> dict[str, Any]:
    answer = facts_of(result)
    return {name: getattr(answer, name) for name in Answer.__slots__}
