"""Routes that tell of training runs, checkpoints and sessions, and change what is saved.

A training run is a model that was created; it is told of as long as its session lives, or it has a
checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from plexsvc.errors import bad_request, not_found
from plexsvc.ids import TenantId
from plexsvc.router.http.fields import text
from plexsvc.router.http.server import TENANT, read_json
from plexsvc.router.http.tinker import adapters
from plexsvc.router.http.tinker.names import SCHEME, Names, Saved, iso
from plexsvc.router.http.tinker.sessions import TinkerSessions

MAX_LISTED: Final = 1000


class Listing:
    """What a tenant has."""

    def __init__(self, sessions: TinkerSessions, names: Names) -> None:
        self._sessions = sessions
        self._names = names

    async def runs(self, request: web.Request) -> web.Response:
        """Tell of training runs, the newest first."""
        found = await self._runs(request[TENANT])
        shown, cursor = _page(request, found)
        return web.json_response({"training_runs": shown, "cursor": cursor})

    async def run(self, request: web.Request) -> web.Response:
        """Tell of one training run."""
        model_id = request.match_info["model_id"]
        for one in await self._runs(request[TENANT]):
            if one["training_run_id"] == model_id:
                return web.json_response(one)
        raise not_found(f"there is no training run {model_id!r:.200}")

    async def checkpoints(self, request: web.Request) -> web.Response:
        """Tell of the checkpoints of a run, or of all."""
        model_id = request.match_info.get("model_id", "")
        every = await self._names.all(request[TENANT], model_id=model_id)
        found = [one.told() for one in reversed(every) if _knows(request, one)]
        if model_id:
            return web.json_response({"checkpoints": found, "cursor": None})
        shown, cursor = _page(request, found)
        return web.json_response({"checkpoints": shown, "cursor": cursor})

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a checkpoint."""
        saved = await self._saved(request)
        await self._names.drop(saved, tenant=request[TENANT])
        return web.json_response(None)

    async def extend(self, request: web.Request) -> web.Response:
        """Give a checkpoint another time to live."""
        asked, saved = await read_json(request), await self._saved(request)
        await self._names.extend(saved, asked.get("ttl_seconds"), tenant=request[TENANT])
        return web.json_response(None)

    async def weights_info(self, request: web.Request) -> web.Response:
        """Tell what a name is of."""
        path = text(await read_json(request), "tinker_path")
        saved = await self._names.find(path, tenant=request[TENANT])
        return web.json_response({"base_model": saved.base_model, **adapters.told(saved.lora)})

    async def sessions(self, request: web.Request) -> web.Response:
        """Tell of the sessions that live, the newest first."""
        found = [one.session_id for one in await self._sessions.all(request[TENANT])]
        shown, _ = _page(request, found[::-1])
        return web.json_response({"sessions": shown})

    async def session(self, request: web.Request) -> web.Response:
        """Tell of one session."""
        session_id = request.match_info["session_id"]
        found = await self._sessions.get(session_id, tenant=request[TENANT])
        return web.json_response(
            {
                "training_run_ids": list(found.models),
                "sampler_ids": list(found.samplers),
                "user_metadata": found.facts.get("user_metadata"),
                "display_name": found.facts.get("display_name"),
            }
        )

    async def refuse(self, request: web.Request) -> web.Response:
        """Refuse, by name, what is not offered."""
        raise bad_request(f"{request.method} {request.path} is not offered here")

    async def _saved(self, request: web.Request) -> Saved:
        parts = [request.match_info[name] for name in ("model_id", "kind", "name")]
        return await self._names.find(SCHEME + "/".join(parts), tenant=request[TENANT])

    async def _runs(self, tenant: TenantId) -> list[dict[str, Any]]:
        sessions = await self._sessions.all(tenant)
        runs = {
            model_id: _run(
                model_id,
                model["base_model"],
                at_us=model.get("asked_us", session.facts["created_us"]),
                tenant=tenant,
            )
            | {"user_metadata": model.get("user_metadata")}
            | _layers(model.get("lora"))
            for session in sessions
            for model_id, model in session.models.items()
        }
        for one in await self._names.all(tenant):
            run = runs.setdefault(
                one.model_id,
                _run(one.model_id, one.base_model, at_us=one.at_us, tenant=tenant)
                | _layers(one.lora),
            )
            if one.kind in _LAST:
                run[_LAST[one.kind]] = one.told()
        return sorted(runs.values(), key=lambda run: str(run["last_request_time"]), reverse=True)


def _knows(request: web.Request, saved: Saved) -> bool:
    """Return whether the SDK that asks can read of such a checkpoint: older ones fail by others."""
    version = re.match(r"0\.(\d{1,4})\.", request.headers.get(_VERSION, ""))
    return version is None or int(version[1]) >= _KNOWN_SINCE.get(saved.kind, 0)


def _run(
    model_id: str,
    base_model: str,
    *,
    tenant: TenantId,
    at_us: int,
) -> dict[str, Any]:
    return {
        "training_run_id": model_id,
        "base_model": base_model,
        "model_owner": tenant,
        "last_request_time": iso(at_us),
    }


def _layers(lora: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a run tells of its adapters; one without has no rank."""
    found = adapters.told(lora)
    return found if lora is not None else found | {"lora_rank": None}


def _page(request: web.Request, found: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """Return the part of a list that a request wants, and where it lies."""
    try:
        limit, offset = (int(request.query.get(name, at)) for name, at in _PAGE.items())
    except ValueError:
        limit, offset = -1, -1
    if not (0 <= limit <= MAX_LISTED and offset >= 0):
        raise bad_request(f"limit is 0 to {MAX_LISTED}, and offset a whole number from 0")
    cursor = {"offset": offset, "limit": limit, "total_count": len(found)}
    return list(found[offset : offset + limit]), cursor


_LAST: Final = {"weights": "last_checkpoint", "sampler_weights": "last_sampler_checkpoint"}
_VERSION: Final = "X-Stainless-Package-Version"
_KNOWN_SINCE: Final = {"external_weights": 30}
_PAGE: Final = {"limit": 100, "offset": 0}
