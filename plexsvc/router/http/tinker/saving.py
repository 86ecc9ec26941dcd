"""Requests that save and load weights: for training, for samplers, and into new models."""

from __future__ import annotations

import json
from typing import Final

from plexclient.wire.v1 import operations_pb2 as ops
from plexsvc.errors import bad_request
from plexsvc.ids import TenantId
from plexsvc.router.http.fields import Asked, text, whole
from plexsvc.router.http.tinker.names import Names, Saved
from plexsvc.router.http.tinker.sessions import (
    Future,
    FutureResult,
    Runner,
    TinkerSession,
    TinkerSessions,
    check_facts,
)
from plexsvc.router.http.tinker.training import Training

SAMPLERS: Final = ("snapshot", "inflight")
"""Samplers of weights that stay, and of those that were saved last."""


class Saving:
    """Saved weights of models."""

    def __init__(self, sessions: TinkerSessions, training: Training, names: Names) -> None:
        self._sessions = sessions
        self._training = training
        self._names = names
        self.runners: dict[str, Runner] = {
            "save_weights": self._saved,
            "save_weights_for_sampler": self._saved_for_sampler,
            "save_weights_external": self._saved_external,
            "load_weights": self._loaded,
        }

    async def load(self, asked: Asked, *, tenant: TenantId) -> Future:
        """Begin to load a name into a model that is there, or into a new one.

        Raises:
            PlexError: `not_found`; `bad_request`.
        """
        if asked.get("model_id") is not None:
            body = json.dumps(asked, sort_keys=True).encode()
            model_id, seq = text(asked, "model_id"), whole(asked, "seq_id")
            return await self._training.submit("load_weights", model_id, seq, body, tenant=tenant)
        saved = await self._loadable(asked, tenant=tenant)
        kind = (asked.get("optimizer_config") or {}).get("type", "adamw")
        base_model = asked.get("base_model") or saved.base_model
        directories = {self._training.known(one).model for one in (base_model, saved.base_model)}
        if kind != "adamw" or len(directories) > 1:
            raise bad_request(
                f"{saved.tinker_path} is of {saved.base_model} and adamw, not of {base_model} and "
                f"{kind}"
            )
        session = await self._sessions.get(text(asked, "session_id"), tenant=tenant)
        facts = {
            "path": saved.path,
            "tinker_path": saved.tinker_path,
            "optimizer": bool(asked.get("optimizer")),
            "lora": saved.lora,
            "user_metadata": asked.get("user_metadata"),
        }
        number = whole(asked, "model_seq_id")
        return await self._training.begin(
            session, number, base_model=base_model, asked=asked, facts=facts
        )

    async def _loadable(self, asked: Asked, *, tenant: TenantId) -> Saved:
        saved = await self._names.find(text(asked, "path"), tenant=tenant)
        if asked.get("weights_access_token"):
            raise bad_request("weights_access_token: names of other tenants are not offered")
        if asked.get("optimizer") and saved.kind != "weights":
            raise bad_request(f"{saved.tinker_path} has no optimizer state; save_state writes it")
        return saved

    async def _saved(self, session: TinkerSession, future: Future) -> FutureResult:
        return await self._written(session, future, kind="weights")

    async def _saved_for_sampler(self, session: TinkerSession, future: Future) -> FutureResult:
        asked = json.loads(future.body)
        if asked.get("path") is not None:
            return await self._written(session, future, kind="sampler_weights")
        number = await self._training.checked(session, future, _sampler_number(asked))
        result = await self._training.run(session, future, ops.Operation(publish=ops.Publish()))
        model = session.model(future.facts["model_id"])
        model["newest"] = max(model.get("newest", 0), result.weight_version)
        sampler_id = f"{session.session_id}:sample:{number}"
        sampler = {
            "base_model": model["base_model"],
            "model_id": model["model_id"],
            "version": 0 if asked.get("kind") == "inflight" else result.weight_version,
        }
        session.samplers[sampler_id] = sampler
        kept = {f"sampler/{sampler_id}": sampler, f"model/{model['model_id']}": model}
        await self._sessions.keep(session, kept)
        told = {"type": "save_weights_for_sampler", "sampling_session_id": sampler_id}
        return FutureResult(told=told)

    async def _saved_external(self, session: TinkerSession, future: Future) -> FutureResult:
        return await self._written(session, future, kind="external_weights")

    async def _written(self, session: TinkerSession, future: Future, *, kind: str) -> FutureResult:
        """Write a model's weights to files, then remember their name."""
        asked = json.loads(future.body)
        model = session.model(future.facts["model_id"])
        before: list[Saved] = []

        async def named() -> Saved:
            if asked.get("age_encryption_recipients"):
                raise bad_request("age_encryption_recipients: encrypted exports are not offered")
            check_facts(asked.get("user_metadata"), "user_metadata")
            number, seq = model["deployment_id"].rpartition("-")[2], future.facts["seq"]
            name = f"{seq:06d}" if asked.get("path") is None else asked["path"]
            saved = Saved(
                model_id=model["model_id"],
                kind=kind,
                name=str(name),
                base_model=model["base_model"],
                path=f"tinker/{session.session_id}/{number}/{kind}/{name}-{seq}",
                request_id=future.request_id,
                at_us=0,
                user_metadata=asked.get("user_metadata"),
                lora=model.get("lora"),
            )
            saved = self._names.new(saved, asked.get("ttl_seconds"))
            before.extend(
                one
                for one in await self._names.all(session.tenant, model_id=saved.model_id)
                if one.tinker_path == saved.tinker_path and one.request_id != future.request_id
            )
            if before and not asked.get("overwrite") and kind == "weights":
                raise bad_request(f"{saved.tinker_path} is there; save it with overwrite=True")
            return saved

        saved = await self._training.checked(session, future, named())
        body = ops.Operation(save=ops.Save(path=saved.path, optimizer=True))
        if kind != "weights":
            body = ops.Operation(export=ops.Export(path=saved.path))
        await self._training.run(session, future, body)
        await self._names.keep(
            await self._names.sized(saved, tenant=session.tenant), tenant=session.tenant
        )
        for one in before:
            await self._names.remove(one.path, tenant=session.tenant)
        return FutureResult(told={"type": future.kind, "path": saved.tinker_path})

    async def _loaded(self, session: TinkerSession, future: Future) -> FutureResult:
        asked, model_id = json.loads(future.body), future.facts["model_id"]
        is_lora = session.model(model_id).get("lora") is not None

        async def found() -> Saved:
            saved = await self._loadable(asked, tenant=session.tenant)
            if is_lora != (saved.lora is not None):
                kinds = ("a whole model", "adapters")
                raise bad_request(
                    f"{saved.tinker_path} holds {kinds[not is_lora]}, and {model_id} trains "
                    f"{kinds[is_lora]}; create a training client from it"
                )
            return saved

        saved = await self._training.checked(session, future, found())
        load = ops.Load(path=saved.path, optimizer=bool(asked.get("optimizer")))
        await self._training.run(session, future, ops.Operation(load=load))
        told = {"type": "load_weights", "path": saved.tinker_path, "model_id": model_id}
        return FutureResult(told=told)


async def _sampler_number(asked: Asked) -> int:
    kind = asked.get("kind", "snapshot")
    if kind not in SAMPLERS:
        raise bad_request(f"kind is {kind!r}; give one of {', '.join(SAMPLERS)}", field="kind")
    return whole(asked, "sampling_session_seq_id")
