"""Validation of operations before they take a place in a queue: complete messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from plexclient.ids import OPERATION_ID_BYTES
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2
from plexsvc.batches import arrays_of, check_batch, check_loss, check_names, lengths_of, rules_of
from plexsvc.errors import PlexError, bad_batch, bad_request, payload_too_large
from plexsvc.ids import show
from plexsvc.router import layout
from plexsvc.router.config import RouterConfig
from plexsvc.sizes import MICRO_BATCH_TOKENS

BATCH_KINDS: Final = frozenset({"forward", "forward_backward", "backward"})
"""Operations that take a batch; the others take no payload."""

_TRAINING: Final = frozenset({"actor", "critic", "reference"})
_TRAINED: Final = frozenset({"actor", "critic"})
ROLES_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "forward": _TRAINING,
    "forward_backward": _TRAINED,
    "backward": _TRAINED,
    "step": _TRAINED,
    "zero_grad": _TRAINED,
    "publish": _TRAINING,
    "pull": _TRAINING | {"rollout"},
    "generate": frozenset({"rollout"}),
    "save": _TRAINING,
    "load": _TRAINING,
    "export": _TRAINING,
    "state_digest": _TRAINING,
    "noop": _TRAINING | {"rollout"},
    "seed": frozenset({"rollout"}),
}
"""Which roles know which operations; `initialize` is the scheduler's own."""

SMALLEST_HYPER: Final = 1e-30
LARGEST_HYPER: Final = 1e30
"""Optimizers compute in float32: what lies outside would be 0 or infinite on the way."""

Arrays = dict[str, npt.NDArray[np.generic]]


def check_operation_id(operation_id: bytes) -> None:
    """Refuse an id that is not 16 bytes.

    Raises:
        PlexError: `bad_request`.
    """
    if len(operation_id) != OPERATION_ID_BYTES:
        raise bad_request(
            f"an operation id has {OPERATION_ID_BYTES} bytes, this one has {len(operation_id)}; "
            "mint it with plexclient.ids.new_operation_id()"
        )


def digest_of(operation: operations_pb2.Operation) -> bytes:
    """Return xxh3-128 of an operation as its client sent it; clears what only routers set."""
    for field in ("tenant", "plan", "refusal", "digest"):
        operation.ClearField(field)
    return xxhash.xxh3_128_digest(operation.SerializeToString(deterministic=True))


def check_identity(operation: operations_pb2.Operation) -> None:
    """Refuse an operation that cannot even take its place in the order: it consumes no number.

    Raises:
        PlexError: `bad_request`.
    """
    check_operation_id(operation.operation_id)
    name = show(operation.operation_id)
    if not operation.job_id or not operation.deployment_id:
        raise bad_request(f"{name} names no job or no deployment; set job_id and deployment_id")
    if operation.seq == 0:
        raise bad_request(f"{name} has seq 0; a deployment's operations count from 1")
    for before in operation.after:
        check_operation_id(before)


class OperationRules:
    """Checks of operations against their deployment, and the plan of their batch."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config

    def admit(
        self, operation: operations_pb2.Operation, deployment: service_pb2.Deployment
    ) -> None:
        """Check `operation` and fill its `plan` when its batch came inline.

        Raises:
            PlexError: a final refusal that names what is wrong; it consumes the sequence number.
        """
        operation.ClearField("plan")
        if len(operation.after) > self._config.max_after:
            raise bad_request(
                f"{show(operation.operation_id)} waits for {len(operation.after)} operations; at "
                f"most {self._config.max_after}"
            )
        kind = _kind(operation)
        _check_role(kind, deployment)
        match kind:
            case "forward":
                _check_temperature(operation.forward.temperature)
            case "forward_backward":
                body = operation.forward_backward
                check_loss(body.loss, body.loss_args, role=deployment.spec.role)
                _check_temperature(body.temperature)
            case "backward":
                _check_temperature(operation.backward.temperature)
            case "step":
                _check_step(operation.step, deployment)
            case "generate":
                self._check_prompts(operation.generate)
            case "pull":
                _check_pull(operation.pull, deployment)
            case "seed":
                _check_seed(operation, deployment)
            case _:
                pass  # the router's roots look at paths; the others have no contents
        if kind in BATCH_KINDS:
            self._check_payload(kind, operation, deployment)
        elif operation.HasField("payload"):
            raise bad_request(f"{kind} takes no payload; send it without one")

    def check_header(self, header: service_pb2.StageHeader) -> None:
        """Check what an upload says it will bring, and set the rules for where it lands.

        Raises:
            PlexError: `bad_batch` or `payload_too_large`.
        """
        self._check_specs(header.tensors, nbytes=header.nbytes, required=("tokens", "cu_seqlens"))

    def plan(
        self, lengths: npt.NDArray[np.int64], deployment: service_pb2.Deployment
    ) -> operations_pb2.DispatchPlan:
        """Return the cut of a batch for the deployment's layout."""
        limit = deployment.spec.micro_batch_tokens or MICRO_BATCH_TOKENS
        dp = deployment.spec.parallel.dp or 1
        return layout.plan(lengths.tolist(), dp=dp, micro_batch_tokens=limit)

    def _check_payload(
        self,
        kind: str,
        operation: operations_pb2.Operation,
        deployment: service_pb2.Deployment,
    ) -> None:
        rules = rules_of(deployment, arrays_of(operation, role=deployment.spec.role))
        match operation.payload.WhichOneof("form"):
            case "inline":
                bundle = operation.payload.inline
                if len(bundle.data) > tensors.INLINE_PAYLOAD_BYTES:
                    raise _too_large(
                        f"an inline payload of {len(bundle.data)} bytes",
                        key="wire.inline_payload_bytes",
                        limit=tensors.INLINE_PAYLOAD_BYTES,
                        remedy="stage it with StagePayload",
                    )
                self._check_specs(bundle.tensors, nbytes=len(bundle.data), required=rules.required)
                arrays = tensors.decode(bundle)
                check_batch(bundle.tensors, arrays, rules)
                operation.plan.CopyFrom(self.plan(lengths_of(arrays["cu_seqlens"]), deployment))
            case "staged":
                staged = operation.payload.staged
                self._check_specs(staged.tensors, nbytes=staged.nbytes, required=rules.required)
                # A client cannot name the payload of another operation.
                staged.staging_id = operation.operation_id
            case _:
                raise bad_batch(f"{kind} needs a batch with {', '.join(rules.required)}; none came")

    def _check_specs(
        self, specs: Iterable[common_pb2.TensorSpec], *, nbytes: int, required: Sequence[str]
    ) -> None:
        given = list(specs)
        if len(given) > self._config.max_batch_arrays:
            raise _too_large(
                f"a batch of {len(given)} arrays",
                key="router.max_batch_arrays",
                limit=self._config.max_batch_arrays,
                remedy="send those that the operation reads",
            )
        by_name = {spec.name: spec for spec in given}
        if nbytes > self._config.max_payload_bytes:
            raise _too_large(
                f"a batch of {nbytes} bytes",
                key="router.max_payload_bytes",
                limit=self._config.max_payload_bytes,
            )
        check_names([spec.name for spec in given], required)
        for spec in by_name.values():
            tensors.check_spec(spec, nbytes)
        self._check_counts(by_name["tokens"], by_name["cu_seqlens"])

    def _check_counts(
        self, tokens: common_pb2.TensorSpec, cu_seqlens: common_pb2.TensorSpec
    ) -> None:
        for spec in (tokens, cu_seqlens):
            if len(spec.shape) != 1 or spec.dtype not in {"I32", "I64"}:
                raise bad_batch(
                    f"{spec.name} is {spec.dtype} of shape {list(spec.shape)}; it must be one row "
                    "of I32 or I64",
                    array=spec.name,
                )
        if tokens.shape[0] > self._config.max_batch_tokens:
            raise _too_large(
                f"a batch of {tokens.shape[0]} tokens",
                key="router.max_batch_tokens",
                limit=self._config.max_batch_tokens,
            )
        if cu_seqlens.shape[0] > self._config.max_batch_sequences + 1:
            raise _too_large(
                f"a batch of {cu_seqlens.shape[0] - 1} sequences",
                key="router.max_batch_sequences",
                limit=self._config.max_batch_sequences,
                remedy="split it",
            )

    def _check_prompts(self, generate: operations_pb2.Generate) -> None:
        if not generate.prompts:
            raise bad_request("generate got no prompts; give at least one")
        if len(generate.prompts) > self._config.max_prompts:
            raise _too_large(
                f"a generate of {len(generate.prompts)} prompts",
                key="router.max_prompts",
                limit=self._config.max_prompts,
                remedy="split it",
            )
        if len(generate.session) > self._config.max_name_chars:
            raise bad_request(
                f"a session's name has {len(generate.session)} characters; at most "
                f"{self._config.max_name_chars}"
            )


def _kind(operation: operations_pb2.Operation) -> str:
    kind: str | None = operation.WhichOneof("body")
    if kind is None:
        raise bad_request(
            f"{show(operation.operation_id)} says not what to do; set one of "
            f"{', '.join(ROLES_OF_KIND)}"
        )
    if kind not in ROLES_OF_KIND:
        raise bad_request(f"{kind} is the service's own; ask for one of {', '.join(ROLES_OF_KIND)}")
    return kind


def _check_role(kind: str, deployment: service_pb2.Deployment) -> None:
    role = deployment.spec.role
    if role not in ROLES_OF_KIND[kind]:
        raise bad_request(
            f"{kind} was asked of deployment {deployment.name!r}, whose role is {role!r}; it is "
            f"for {', '.join(sorted(ROLES_OF_KIND[kind]))}",
            role=role,
        )


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise bad_request(f"temperature is {temperature}; it must be finite and not negative")


def _check_step(step: operations_pb2.Step, deployment: service_pb2.Deployment) -> None:
    if not deployment.spec.HasField("optimizer"):
        raise bad_request(
            f"step was asked of deployment {deployment.name!r}, which has no optimizer; deploy it "
            "with one, e.g. optimizer=plex.AdamW(lr=1e-6)"
        )
    given = {field.name: float(value) for field, value in step.ListFields()}
    check_hyper(given)


def check_hyper(given: Mapping[str, float]) -> None:
    """Refuse hyper-parameters AdamW cannot take; names are those of `Step`.

    Raises:
        PlexError: `bad_request` naming the first bad one and its bounds.
    """
    for name, value in given.items():
        if name in {"beta1", "beta2"}:
            bound, fits = "in [0, 1)", 0 <= value < 1
        elif name == "eps":
            bound = f"from {SMALLEST_HYPER:.0e} to {LARGEST_HYPER:.0e}"
            fits = SMALLEST_HYPER <= value <= LARGEST_HYPER
        else:
            bound, fits = f"from 0 to {LARGEST_HYPER:.0e}", 0 <= value <= LARGEST_HYPER
        if not fits:
            raise bad_request(f"optimizer {name} is {value}; it must be {bound}", parameter=name)


def _check_seed(operation: operations_pb2.Operation, deployment: service_pb2.Deployment) -> None:
    if not deployment.spec.seeds or len(operation.after) != 1:
        raise bad_request(
            f"seed was asked of {deployment.name!r} after {len(operation.after)} operations; it is "
            "for instances on training devices (`seeds`), after the one generate that they serve"
        )


def _check_pull(pull: operations_pb2.Pull, deployment: service_pb2.Deployment) -> None:
    if not pull.source_deployment_id or pull.version == 0:
        raise bad_request(
            "pull needs source_deployment_id and a version; a version is the seq of its publish"
        )
    if pull.finishes_turns and deployment.spec.role != "rollout":
        raise bad_request(
            f"pull with finishes_turns on {deployment.deployment_id}, of role "
            f"{deployment.spec.role}: only a rollout deployment has turns"
        )


def _too_large(
    what: str, *, key: str, limit: int, remedy: str = "split it or raise the limit"
) -> PlexError:
    return payload_too_large(f"{what} exceeds {key} = {limit}; {remedy}", key=key, limit=limit)
