"""Training clients: a model is a deployment of its session's job, a request one operation on it."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from plexclient.ids import JobId, new_deployment_id
from plexclient.specs import AdamW
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import PlexError, bad_request, queue_full
from plexsvc.ids import TenantId
from plexsvc.router.config import TinkerModel
from plexsvc.router.http.fields import Asked, text, whole
from plexsvc.router.http.server import off_loop
from plexsvc.router.http.tinker import adapters, wire
from plexsvc.router.http.tinker.adapters import Adapter
from plexsvc.router.http.tinker.lanes import OperationLane, persist
from plexsvc.router.http.tinker.sessions import (
    Future,
    FutureResult,
    Runner,
    TinkerSession,
    TinkerSessions,
    check_facts,
)

ADAM: Final = AdamW(lr=1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, clip_grad_norm=0.0)
"""What the SDK's `AdamParams` are unless given."""
STEP: Final[Mapping[str, str]] = {
    "learning_rate": "lr",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "weight_decay": "weight_decay",
    "grad_clip_norm": "clip_grad_norm",
}
"""Fields of `AdamParams`, by the names that a step has for them."""
MAX_MODELS: Final = 1024
"""Models of a session: each has a record, and facts of its client's in it."""
OPENING: Final = 1
"""Number of the operation that a model begins with; the client's first request has the next."""

T = TypeVar("T")


class Training:
    """Models and their requests."""

    def __init__(
        self,
        sessions: TinkerSessions,
        *,
        deploy: Callable[..., Awaitable[pb.Deployment]],
        models: Mapping[str, TinkerModel],
    ) -> None:
        self._sessions = sessions
        self._deploy = deploy
        self._models = models
        self.runners: dict[str, Runner] = {
            "create_model": self._created,
            "forward_backward": self._passed,
            "optim_step": self._stepped,
        }

    def known(self, base_model: str) -> TinkerModel:
        """Return how a base model is trained."""
        return self._models.get(base_model) or TinkerModel(model=base_model)

    async def create(self, asked: Asked, *, tenant: TenantId) -> Future:
        """Begin to create a model that trains all its parameters, or adapters.

        Raises:
            PlexError: `bad_request` for what neither can be, or another optimizer than AdamW.
        """
        session = await self._sessions.get(text(asked, "session_id"), tenant=tenant)
        base_model, lora = text(asked, "base_model"), asked.get("lora_config")
        number = whole(asked, "model_seq_id")
        adapter = self._adapter(base_model, lora)
        kind = (asked.get("optimizer_config") or {}).get("type", "adamw")
        if kind != "adamw":
            raise bad_request(f"optimizer_config.type={kind!r} is not offered; offered is adamw")
        seed = (lora or {}).get("seed") or 0
        return await self.begin(
            session,
            number,
            base_model=base_model,
            asked=asked,
            facts={
                "seed": seed,
                "lora": adapters.kept(adapter),
                "user_metadata": asked.get("user_metadata"),
            },
        )

    async def begin(
        self,
        session: TinkerSession,
        number: int,
        *,
        base_model: str,
        asked: Asked,
        facts: dict[str, Any],
    ) -> Future:
        """Begin to create a model; with `path` in its facts it goes on from what lies there.

        Raises:
            PlexError: as `TinkerSessions.start`.
        """
        check_facts(facts, "user_metadata")
        model_id = f"{session.session_id}:train:{number}"
        is_new = model_id not in session.models
        if is_new and len(session.models) >= MAX_MODELS:
            raise queue_full(
                f"session {session.session_id} has {MAX_MODELS} models; create another session"
            )
        model = {
            "model_id": model_id,
            "base_model": base_model,
            "deployment_id": new_deployment_id(JobId(session.session_id), f"train-{number}"),
            **facts,
        }
        future = Future(
            request_id=f"{session.session_id}:create:{number}",
            kind="create_model",
            facts={"model_id": model_id, "deployment_id": model["deployment_id"], "seq": OPENING},
            body=json.dumps(asked, sort_keys=True).encode(),
        )
        session.models.setdefault(model_id, model)
        try:
            return await self._sessions.start(session, future, records={f"model/{model_id}": model})
        except PlexError:
            if is_new:
                session.models.pop(model_id, None)
            raise

    async def waits(self, session: TinkerSession, future: Future) -> dict[str, str]:
        """Return what a client is told of a model that has no devices yet, and why."""
        if future.kind != "create_model":
            return {}
        found = await self._sessions.deployment(session, future.facts["deployment_id"])
        if found is None or found.blocks:
            return {}
        reason = await self._sessions.explain(session)
        return {"queue_state": "paused_capacity", "queue_state_reason": reason}

    async def submit(
        self, kind: str, model_id: str, seq: int, body: bytes, *, tenant: TenantId
    ) -> Future:
        """Take a request of a model, once for all that come with its number.

        Raises:
            PlexError: `not_found`; `bad_request`.
        """
        session = await self._sessions.get(model_id, tenant=tenant)
        model = session.model(model_id)
        model["asked_us"] = self._sessions.clock.wall_us()
        if not 0 < seq < 2**31:
            raise bad_request(f"seq_id is {seq}; it counts from 1", field="seq_id")
        facts = {
            "model_id": model_id,
            "deployment_id": model["deployment_id"],
            "seq": seq + OPENING,
        }
        future = Future(request_id=f"{model_id}:{seq}", kind=kind, facts=facts, body=body)
        return await self._sessions.start(session, future)

    async def info(self, asked: Asked, *, tenant: TenantId) -> dict[str, Any]:
        """Return what a model is."""
        model_id = text(asked, "model_id")
        model = (await self._sessions.get(model_id, tenant=tenant)).model(model_id)
        name = model["base_model"]
        is_on_hub = name.count("/") == 1 and not name.startswith("/")
        return {
            "type": "get_info",
            "model_data": {
                "arch": "lora" if model.get("lora") else "full",
                "model_name": name,
                "tokenizer_id": None if is_on_hub else self.known(name).model,
            },
            "model_id": model_id,
            "model_name": name,
            **adapters.told(model.get("lora")),
        }

    def _adapter(self, base_model: str, lora: Any) -> Adapter | None:
        """Return what is asked for; a base model of `router.tinker` is always trained whole."""
        if lora is None or base_model in self._models:
            return None
        if not isinstance(lora, dict) or lora.get("rank") != 0:
            return adapters.read(lora)
        for name in adapters.LAYERS:
            if lora.get(name) is False:
                raise bad_request(f"lora_config.{name}=false: rank 0 trains all parameters")
        return None

    def spec(
        self, base_model: str, *, adapter: Adapter | None = None, seed: int = 0
    ) -> pb.DeploymentSpec:
        """Return the deployment that trains a base model, or adapters of it."""
        known = self.known(base_model)
        return pb.DeploymentSpec(
            role="actor",
            model=known.model,
            backend=known.backend if adapter is None else adapters.BACKEND,
            parallel=known.parallel.to_wire(),
            optimizer=ADAM.to_wire(),
            dtype=known.dtype,
            seed=seed,
            micro_batch_tokens=known.micro_batch_tokens,
            lora=None if adapter is None else adapter.to_wire(),
        )

    async def _created(self, session: TinkerSession, future: Future) -> FutureResult:
        model = session.model(future.facts["model_id"])
        spec = self.spec(
            model["base_model"],
            adapter=adapters.of(model.get("lora")),
            seed=model.get("seed") or 0,
        )
        await self.deployed(session, model["deployment_id"], spec)
        lane = self.lane(session, future)
        if "path" not in model:
            await lane.run(ops.Operation(noop=ops.Noop()), seq=OPENING)
            return FutureResult(told={"type": "create_model", "model_id": model["model_id"]})
        load = ops.Load(path=model["path"], optimizer=model["optimizer"])
        await lane.run(ops.Operation(load=load), seq=OPENING)
        told = {"path": model["tinker_path"], "model_id": model["model_id"]}
        return FutureResult(told={"type": "load_weights", **told})

    async def deployed(
        self, session: TinkerSession, deployment_id: str, spec: pb.DeploymentSpec
    ) -> pb.Deployment:
        """Return a deployment once it is ready."""
        request = pb.CreateDeploymentRequest(
            deployment_id=deployment_id,
            job_id=session.session_id,
            name=deployment_id.partition("/")[2],
            spec=spec,
        )

        async def ask() -> pb.Deployment:
            sent = pb.CreateDeploymentRequest()
            sent.CopyFrom(request)
            return await self._deploy(sent, tenant=session.tenant)

        return await persist(ask, clock=self._sessions.clock, what=deployment_id)

    def lane(self, session: TinkerSession, future: Future) -> OperationLane:
        """Return the lane of a future's deployment."""
        return self._sessions.lane(session, future.facts["deployment_id"])

    async def run(
        self, session: TinkerSession, future: Future, operation: ops.Operation
    ) -> ops.OperationResult:
        """Return the answer of the operation that a future is."""
        return await self.lane(session, future).run(operation, seq=future.facts["seq"])

    async def checked(self, session: TinkerSession, future: Future, made: Awaitable[T]) -> T:
        """Return what a future's operation is made of; a refusal takes its number all the same."""
        try:
            return await made
        except Exception as error:
            if not (isinstance(error, PlexError) and error.retryable):
                await self.lane(session, future).fill(future.facts["seq"])
            raise

    async def _passed(self, session: TinkerSession, future: Future) -> FutureResult:
        async def read() -> wire.PackedPass:
            make = partial(wire.pass_of_body, future.body)
            return await off_loop(make, nbytes=len(future.body))

        asked = await self.checked(session, future, read())
        lane, seq = self.lane(session, future), future.facts["seq"]
        if asked.is_forward:
            operation = ops.Operation(forward=ops.Forward(temperature=1.0))
            arrays = {
                name: asked.arrays[name] for name in ("cu_seqlens", "tokens", "target_tokens")
            }
        else:
            body = ops.ForwardBackward(
                loss=asked.loss, loss_args=asked.arguments, return_logprobs=True, temperature=1.0
            )
            operation, arrays = ops.Operation(forward_backward=body), dict(asked.arrays)
        result = await lane.run(operation, seq=seq, arrays=arrays)
        logprobs = await lane.logprobs(result, bounds=asked.bounds)
        output = wire.output_of(asked, logprobs, dict(result.metrics))
        return FutureResult(told=partial(wire.output_as_json, output), message=output)

    async def _stepped(self, session: TinkerSession, future: Future) -> FutureResult:
        async def read() -> ops.Step:
            asked = json.loads(future.body)
            if "optimizer_params" in asked:
                raise bad_request("optimizer_params are not offered; adam_params are")
            return step_of(asked.get("adam_params"))

        step = await self.checked(session, future, read())
        result = await self.run(session, future, ops.Operation(step=step))
        metrics = {f"{name}:mean": value for name, value in result.metrics.items()}
        return FutureResult(told={"type": "optim_step", "metrics": metrics})


def step_of(given: Any) -> ops.Step:
    """Return a step by the SDK's `AdamParams`.

    Raises:
        PlexError: `bad_request`.
    """
    if not isinstance(given, dict) or given.keys() - STEP.keys():
        odd = ", ".join(sorted(given.keys() - STEP.keys())) if isinstance(given, dict) else given
        raise bad_request(f"adam_params: {odd!s:.200}: it has {', '.join(STEP)}")
    step = ops.Step(decay_vectors=True)
    for name, native in STEP.items():
        value = given.get(name, getattr(ADAM, native))
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise bad_request(f"adam_params.{name} is {value!r}, no number", field=name)
        setattr(step, native, float(value))
    return step
