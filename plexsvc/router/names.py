"""Names and ids that clients choose: length and characters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.errors import bad_request
from plexsvc.router.config import RouterConfig

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What a name may be: keys, files and directories are called after it."""

MAX_NAME_CHARS: Final = 64

QUOTAS: Final = ("jobs", "devices", "host_bytes", "requests", "spend")
"""What a tenant's quota may be for."""

SCOPES: Final = ("read", "submit", "admin")
"""What a token may do; each may do what those before it may."""
JOIN: Final = "join"
"""Scope of a token that lets in a node, not a caller; its name is the node's."""


def check_job(request: service_pb2.CreateJobRequest, config: RouterConfig) -> None:
    """Refuse a job with an id, a name or labels that no table could show.

    Raises:
        PlexError: `bad_request`.
    """
    if not request.job_id:
        raise bad_request("create_job got no job_id; mint one with plexclient.ids.new_job_id()")
    if len(request.job_id) > config.max_name_chars or not NAME.fullmatch(request.job_id):
        raise bad_request(
            f"job id {_shown(request.job_id)} is not {config.max_name_chars} or "
            "fewer of a-z A-Z 0-9 . _ -; mint one with plexclient.ids.new_job_id()"
        )
    check_name("a job's name", request.name)
    _check_count("labels of a job", request.labels, limit=config.max_labels)
    for name, value in request.labels.items():
        _check_text("a label's name", name, most=config.max_name_chars)
        _check_text(f"label {name!r}", value, most=config.max_name_chars, may_be_empty=True)


def check_deployment(request: service_pb2.CreateDeploymentRequest) -> None:
    """Refuse a deployment without a name, or with an id that is not its job's and its name's.

    Raises:
        PlexError: `bad_request`.
    """
    check_name("a deployment's name", request.name)
    expected = f"{request.job_id}/{request.name}"
    if request.deployment_id != expected:
        raise bad_request(
            f"deployment {_shown(request.name)} of job {_shown(request.job_id)} came with id "
            f"{_shown(request.deployment_id)}; its id is {expected!r}, job and name"
        )


def check_set(request: service_pb2.CreateDeploymentsRequest) -> None:
    """Refuse a set without deployments, with those of another job, or with a name twice.

    Raises:
        PlexError: `bad_request`.
    """
    if not request.job_id or not request.deployments:
        raise bad_request("create_deployments needs job_id and one deployment or more")
    asked = [one.name for one in request.deployments]
    if len(set(asked)) < len(asked):
        raise bad_request(f"a set names a deployment twice: {_shown(' '.join(asked))}")
    for one in request.deployments:
        if one.job_id != request.job_id:
            raise bad_request(
                f"deployment {_shown(one.name)} of a set is of job {_shown(one.job_id)}; all are "
                f"of {_shown(request.job_id)}"
            )


def check_token(request: service_pb2.CreateTokenRequest, config: RouterConfig) -> None:
    """Refuse a token of a tenant that cannot be, or of no scope there is.

    Raises:
        PlexError: `bad_request`.
    """
    if request.scope == JOIN:
        if request.owner or not request.lifetime_us:
            raise bad_request("a token for a node is no tenant's, and expires; give a lifetime")
        if request.name:
            check_name("a node's name", request.name)
        return
    check_name("a tenant's name", request.owner)
    _check_text("a token's name", request.name, most=config.max_name_chars, may_be_empty=True)
    if request.scope not in SCOPES:
        raise bad_request(
            f"a token's scope is {_shown(request.scope)}; give one of {', '.join(SCOPES)}"
        )


def check_quota(request: service_pb2.SetQuotaRequest, _: RouterConfig) -> None:
    """Refuse a quota of a tenant that cannot be, of what is not counted, or of nothing at all.

    Raises:
        PlexError: `bad_request`.
    """
    check_name("a tenant's name", request.owner)
    if request.what not in QUOTAS:
        raise bad_request(f"a quota is for {_shown(request.what)}; give one of {', '.join(QUOTAS)}")
    if not request.most and not request.is_lifted:
        raise bad_request(
            f"a quota of 0 {request.what} would shut tenant {request.owner!r} out; give 1 or more, "
            "or revoke its tokens"
        )


def check_metrics(request: service_pb2.KeepAliveRequest, config: RouterConfig) -> None:
    """Refuse more progress figures than a job may show.

    Raises:
        PlexError: `bad_request`.
    """
    _check_count("metrics of a job", request.metrics, limit=config.max_metrics)
    for name in request.metrics:
        _check_text("a metric's name", name, most=config.max_name_chars)


def check_name(what: str, name: str) -> None:
    """Refuse what is no name.

    Raises:
        PlexError: `bad_request`.
    """
    if len(name) > MAX_NAME_CHARS or not NAME.fullmatch(name):
        raise bad_request(
            f"{what} is {_shown(name)}; it is 1 to {MAX_NAME_CHARS} of a-z A-Z 0-9 . _ -, and "
            "begins with a letter or digit"
        )


def _check_text(what: str, text: str, *, most: int, may_be_empty: bool = False) -> None:
    if not text and not may_be_empty:
        raise bad_request(f"{what} is empty; give one")
    if len(text) > most:
        raise bad_request(f"{what} is {_shown(text)}, {len(text)} characters; at most {most}")
    if not text.isprintable():
        raise bad_request(f"{what} is {text!r}; control characters and line ends have no place")


def _check_count(what: str, given: Mapping[str, object], *, limit: int) -> None:
    if len(given) > limit:
        raise bad_request(f"{len(given)} {what}; at most {limit}")


def _shown(text: str) -> str:
    """Return the beginning of a text that may be anything."""
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
