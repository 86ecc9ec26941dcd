"""Routes of the Tinker SDK, below `/api/v1`.

What is refused is refused by name in a JSON body, with a status that the SDK does not try again
unless it may pass. A future is waited for by one request after another: each holds for a while,
and then says 408.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from google.protobuf.message import Message

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.router.api import SchedulerApi
from plexsvc.router.config import RouterConfig, TinkerModel
from plexsvc.router.http.fields import text, whole
from plexsvc.router.http.server import TENANT, error_of, off_loop, read_body, read_json
from plexsvc.router.http.tinker import archives, wire
from plexsvc.router.http.tinker.archives import Archives
from plexsvc.router.http.tinker.lanes import Wire
from plexsvc.router.http.tinker.listing import Listing
from plexsvc.router.http.tinker.names import Names
from plexsvc.router.http.tinker.sampling import Sampling
from plexsvc.router.http.tinker.saving import Saving
from plexsvc.router.http.tinker.sessions import Future, Runner, TinkerSession, TinkerSessions
from plexsvc.router.http.tinker.training import Training

ROOT: Final = "/api/v1"
HOLD_S: Final = 25.0
"""How long a request waits for a future; the SDK gives up at 45 s."""
CHUNK_BYTES: Final = 2 << 20
"""Bytes of one forward_backward, by which the SDK cuts a batch: a record holds one."""
NUMBERED: Final = (
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
)
"""Requests in JSON that are one operation of a model each, by their kinds."""
OUTCOMES: Final[Mapping[str, Any]] = {
    "success": pb.JOB_STATE_COMPLETED,
    "errored": pb.JOB_STATE_FAILED,
    "interrupted": pb.JOB_STATE_CANCELLED,
}
USER: Final = frozenset(
    {
        ErrorCode.BAD_REQUEST,
        ErrorCode.BAD_BATCH,
        ErrorCode.UNKNOWN_LOSS,
        ErrorCode.UNKNOWN_MODEL,
        ErrorCode.NOT_FOUND,
        ErrorCode.FORBIDDEN,
        ErrorCode.PAYLOAD_TOO_LARGE,
        ErrorCode.LOGPROB_MISMATCH,
        ErrorCode.CHECKPOINT_DAMAGED,
        ErrorCode.OVER_BUDGET,
        ErrorCode.NO_PLACEMENT,
    }
)
"""Failures that the client's request is the cause of."""

log = Log(__name__)

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Front:
    """The Tinker SDK's service, as a client of this router."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        wire_: Wire,
        names: Names,
        *,
        config: RouterConfig,
        control: Callable[..., Awaitable[Message]],
        keep_alive: Callable[..., Awaitable[pb.KeepAliveReply]],
        deploy: Callable[..., Awaitable[pb.Deployment]],
        hold: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._config = config
        self._hold = hold
        runners: dict[str, Runner] = {}
        self._sessions = TinkerSessions(
            scheduler, wire_, control=control, keep_alive=keep_alive, runners=runners
        )
        self._training = Training(self._sessions, deploy=deploy, models=config.tinker)
        self._saving = Saving(self._sessions, self._training, names)
        self._sampling = Sampling(self._sessions, self._training, names, wire_.downloads)
        self._listing = Listing(self._sessions, names)
        self._archives = Archives(names, hold=hold)
        runners |= self._training.runners | self._saving.runners | self._sampling.runners

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what clients ask for, until left; what is under way then goes on with the next."""
        async with asyncio.TaskGroup() as group:
            self._sessions.group = group
            try:
                yield
            finally:
                self._sessions.cancel()

    def files(self) -> list[web.RouteDef]:
        """Return the routes that need no token: a signed link is enough."""
        return [web.get(archives.PATH, named(self._archives.follow))]

    def routes(self) -> list[web.RouteDef]:
        """Return the routes that need one."""
        posts: dict[str, Handle] = {
            "client/config": self._client_config,
            "client/dynamic_config": self._dynamic_config,
            "telemetry": self._telemetry,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{session_id}/finish": self._finish,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "forward": self._forward,
            "forward_backward": self._forward_backward,
            **{kind: partial(self._numbered, kind=kind) for kind in NUMBERED},
            "load_weights": self._load,
            "create_sampling_session": self._create_sampler,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
            "retrieve_futures": self._retrieve_many,
        }
        gets: dict[str, Handle] = {
            "healthz": self._health,
            "get_server_capabilities": self._capabilities,
            "samplers/{sampler_id}": self._sampler,
        }
        listing = self._listing
        one = "training_runs/{model_id}/checkpoints/{kind}/{name}"
        gets |= {
            "training_runs": listing.runs,
            "training_runs/{model_id}": listing.run,
            "training_runs/{model_id}/checkpoints": listing.checkpoints,
            "checkpoints": listing.checkpoints,
            "sessions": listing.sessions,
            "sessions/{session_id}": listing.session,
            f"{one}/archive": self._archives.archive,
            f"{one}/external_weights_urls": self._archives.files,
        }
        posts["weights_info"] = listing.weights_info
        return [
            web.delete(f"{ROOT}/{one}", named(listing.delete)),
            web.put(f"{ROOT}/{one}/ttl", named(listing.extend)),
            *(web.post(f"{ROOT}/{path}", named(handle)) for path, handle in posts.items()),
            *(web.get(f"{ROOT}/{path}", named(handle)) for path, handle in gets.items()),
            web.route("*", ROOT + "/{rest:.*}", named(listing.refuse)),
        ]

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _telemetry(self, request: web.Request) -> web.Response:
        await read_body(request)
        return web.json_response({"status": "accepted"})

    async def _client_config(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "fwdbwd_max_chunk_bytes_count": CHUNK_BYTES,
                "sample_use_retrieve_futures": True,
                "use_pyqwest_transport": False,
            }
        )

    async def _dynamic_config(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _capabilities(self, _: web.Request) -> web.Response:
        models = await asyncio.to_thread(_models, self._config)
        return web.json_response({"supported_models": models})

    async def _create_session(self, request: web.Request) -> web.Response:
        asked = await read_json(request)
        session = await self._sessions.open(asked, tenant=request[TENANT])
        return web.json_response({"type": "create_session", "session_id": session.session_id})

    async def _heartbeat(self, request: web.Request) -> web.Response:
        session_id = text(await read_json(request), "session_id")
        session = await self._sessions.get(session_id, tenant=request[TENANT])
        await self._sessions.beat(session)
        return web.json_response({"type": "session_heartbeat"})

    async def _finish(self, request: web.Request) -> web.Response:
        asked, session_id = await read_json(request), request.match_info["session_id"]
        session = await self._sessions.get(session_id, tenant=request[TENANT])
        kind, detail = str((asked.get("reason") or {}).get("type")), asked.get("detail") or ""
        if kind not in OUTCOMES:
            raise bad_request(f"reason.type is {kind!r}; give one of {', '.join(OUTCOMES)}")
        await self._sessions.end(session, outcome=OUTCOMES[kind], reason=str(detail)[:1024])
        return web.json_response(None)

    async def _create_model(self, request: web.Request) -> web.Response:
        asked = await read_json(request)
        return _begun(await self._training.create(asked, tenant=request[TENANT]))

    async def _get_info(self, request: web.Request) -> web.Response:
        asked = await read_json(request)
        return web.json_response(await self._training.info(asked, tenant=request[TENANT]))

    async def _forward(self, request: web.Request) -> web.Response:
        return await self._pass(request, await _pass_of_json(request, is_forward=True))

    async def _forward_backward(self, request: web.Request) -> web.Response:
        if request.content_type == wire.PROTOBUF:
            asked = wire.request_of(await read_body(request))
        else:
            asked = await _pass_of_json(request, is_forward=False)
        return await self._pass(request, asked)

    async def _pass(self, request: web.Request, asked: Any) -> web.Response:
        body = asked.SerializeToString(deterministic=True)
        future = await self._training.submit(
            "forward_backward", asked.model_id, asked.seq_id, body, tenant=request[TENANT]
        )
        return _begun(future)

    async def _load(self, request: web.Request) -> web.Response:
        return _begun(await self._saving.load(await read_json(request), tenant=request[TENANT]))

    async def _create_sampler(self, request: web.Request) -> web.Response:
        asked = await read_json(request)
        sampler_id = await self._sampling.create(asked, tenant=request[TENANT])
        told = {"type": "create_sampling_session", "sampling_session_id": sampler_id}
        return web.json_response(told)

    async def _sampler(self, request: web.Request) -> web.Response:
        sampler_id = request.match_info["sampler_id"]
        return web.json_response(await self._sampling.find(sampler_id, tenant=request[TENANT]))

    async def _sample(self, request: web.Request) -> web.Response:
        future = await self._sampling.submit(await read_json(request), tenant=request[TENANT])
        told = {"request_id": future.request_id, "sample_sequence_ids": future.facts["samples"]}
        return web.json_response(told)

    async def _numbered(self, request: web.Request, *, kind: str) -> web.Response:
        """Take a request that comes as JSON and is one operation of a model."""
        asked = await read_json(request)
        body = json.dumps(asked, sort_keys=True).encode()
        model_id, seq = text(asked, "model_id"), whole(asked, "seq_id")
        return _begun(
            await self._training.submit(kind, model_id, seq, body, tenant=request[TENANT])
        )

    async def _retrieve(self, request: web.Request) -> web.Response:
        asked, tenant = await read_json(request), request[TENANT]
        try:
            session, future = await self._future(text(asked, "request_id"), tenant=tenant)
            if not future.work.done():
                with self._hold(tenant):
                    await asyncio.wait({future.work}, timeout=HOLD_S)
        except PlexError as error:
            if not error.retryable:
                raise
            return web.json_response(error_of(error), status=429)  # the SDK pauses, then asks again
        if not future.work.done():
            waits = {"type": "try_again", "request_id": future.request_id, "queue_state": "active"}
            waits |= await self._training.waits(session, future)
            return web.json_response(waits, status=408)
        if future.work.cancelled():
            raise PlexError(ErrorCode.JOB_ENDED, f"session {session.session_id} has ended")
        session.read.add(future)
        found = future.work.result()
        if isinstance(found, PlexError):
            category = "user" if found.code in USER else "server"
            return web.json_response({"error": str(found), "category": category})
        if found.message is not None and wire.PROTOBUF in request.headers.get("Accept", ""):
            body = found.message.SerializeToString()
            return web.Response(body=body, content_type=wire.PROTOBUF)
        told = found.told() if callable(found.told) else found.told
        return web.json_response(told)

    async def _retrieve_many(self, request: web.Request) -> web.Response:
        asked, tenant = await read_json(request), request[TENANT]
        with self._hold(tenant):
            return web.json_response(
                await self._sampling.ended(asked, tenant=tenant, hold_s=HOLD_S)
            )

    async def _future(self, request_id: str, *, tenant: TenantId) -> tuple[TinkerSession, Future]:
        session = await self._sessions.get(request_id, tenant=tenant)
        if request_id not in session.futures:
            raise PlexError(
                ErrorCode.RESULT_GONE,
                f"there is no future {request_id!r:.200}: its answer was read, or it never began",
            )
        return session, session.futures[request_id]


def named(handle: Handle) -> Handle:
    """Return a handler whose refusals have a status that says whether to try again."""

    async def handled(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except PlexError as error:
            if error.retryable or error.code in _AS_THEY_ARE:
                raise
            is_gone = error.code in {ErrorCode.RESULT_GONE, ErrorCode.JOB_ENDED}
            return web.json_response(error_of(error), status=410 if is_gone else 400)
        except (AttributeError, KeyError, TypeError) as error:
            # Only what somebody else than the SDK sent has another form. No traceback: whoever
            # sends many would fill the log.
            log.warning("request not understood", path=request.path, error=error)
            told = error_of(bad_request(f"the body has not the form that the SDK sends: {error!r}"))
            return web.json_response(told, status=400)

    return handled


_AS_THEY_ARE: Final = frozenset(
    {
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
        ErrorCode.PAYLOAD_TOO_LARGE,
    }
)
"""Codes whose status the server knows."""


async def _pass_of_json(request: web.Request, *, is_forward: bool) -> Any:
    make = partial(wire.request_of_json, await read_json(request), is_forward=is_forward)
    return await off_loop(make, nbytes=len(await request.read()))


def _begun(future: Future) -> web.Response:
    told = {"request_id": future.request_id, "model_id": future.facts.get("model_id")}
    return web.json_response({name: value for name, value in told.items() if value is not None})


def _models(config: RouterConfig) -> list[dict[str, Any]]:
    """Return the base models: configured ones, and directories below the roots of models."""
    found = {
        str(file.parent.relative_to(root)): TinkerModel(model=str(file.parent))
        for root in config.model_roots
        for pattern in ("*/config.json", "*/*/config.json")
        for file in root.glob(pattern)
    }
    return [
        {
            "model_name": name,
            "trainable": True,
            "sampleable": True,
            "max_context_length": model.max_model_len or _positions(model.model, config),
        }
        for name, model in {**dict(sorted(found.items())), **config.tinker}.items()
    ]


def _positions(model: str, config: RouterConfig) -> int | None:
    """Return how many tokens a model was made for, if its directory says so."""
    for root in (*config.model_roots, Path("/")):
        try:
            text_ = (root / model / "config.json").read_text()
            return int(json.loads(text_)["max_position_embeddings"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None
