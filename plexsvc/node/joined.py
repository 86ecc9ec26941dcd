"""A host that joins a cluster with a token: its key pair, its certificate, and its agent.

The key pair is made here, and the private key stays here. The same token may be given again, for
instance when the host starts again: it has been used then, and what it gave is here.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc import config as configuration
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError, bad_request, unavailable
from plexsvc.node import toml
from plexsvc.node.join import JoinConfig, PoolConfig, private_key
from plexsvc.node.logs import tail
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import write_private

_CONFIG: Final = "join.toml"
MAX_SKEW_S: Final = 60.0
"""How far the clock of a host that joins may be off the service's: certificates have times."""

Ask = Callable[[pb.JoinNodeRequest], pb.JoinNodeReply]
"""Asks the cluster's router, with the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedHost:
    """How a host joins."""

    node_id: str
    token: str
    """Empty: it has joined before."""
    listen: str
    """Its address for other hosts, with a port; 0: the one that it had, or a free one."""
    directory: Path
    """Where this host keeps what its nodes have."""
    pool: PoolConfig

    @property
    def place(self) -> Path:
        """Where this node keeps what it has."""
        return self.directory / self.node_id


def join(joining: JoinedHost, ask: Ask, *, on_up: Callable[[str], None]) -> int:
    """Run the agent of this host until it ends, or this process is told to; return its exit status.

    `on_up` takes its address once the cluster has taken it in.

    Raises:
        PlexError: what the cluster refuses; `bad_request` without a token on a host that never
            joined, `unauthenticated` when another cluster answers, `unavailable` when the agent
            does not start.
    """
    place = joining.place
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    used = place / "token"
    is_known = used.exists() and used.read_text() == _id(joining.token or used.read_text())
    if not is_known and not joining.token:
        raise bad_request(
            f"node {joining.node_id} has not joined from {place}; give it a token "
            "(`plexctl node token create`)"
        )
    request = pb.JoinNodeRequest()
    if is_known:
        before = configuration.load(place / _CONFIG, JoinConfig)
        told = pb.JoinNodeReply(
            certificate=before.certificate,
            authority=before.authority,
            version=version("plexsvc"),
            roots=map(str, before.roots),
        )
        _write(joining, told)
    else:
        request.request = certificates.request_for(private_key(place), node_id=joining.node_id)
        _take(joining, ask(request))

    def serves(address: str) -> None:
        write_private(place / "address", address)
        if not is_known:
            request.agent = address
            ask(request)
            # Last: a host that dies before this joins with the same token again.
            write_private(used, _id(joining.token))
        on_up(address)

    return _run(place, on_up=serves)


def own_address(towards: str) -> str:
    """Return this host's address on the way to `HOST:PORT`.

    Raises:
        PlexError: `bad_request` where no way leads.
    """
    host, _, port = towards.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.connect((host, int(port)))
            return str(line.getsockname()[0])
    except (OSError, ValueError) as error:
        raise bad_request(f"no way leads to a router at {towards!r}: {error}") from error


def _id(token: str) -> str:
    return token.partition(".")[0]


def _take(joining: JoinedHost, reply: pb.JoinNodeReply) -> None:
    """Keep what the cluster says.

    Raises:
        PlexError: `unauthenticated` when it is not the one that the token is of; `bad_request` when
            one of the clocks is wrong.
    """
    shown = sha256(reply.authority.encode()).hexdigest()
    if not secrets.compare_digest(shown, joining.token.rpartition(".")[2]):
        raise PlexError(
            ErrorCode.UNAUTHENTICATED,
            "who answers is not the cluster that the token is of: its certificate is another; "
            "give the address of that cluster's router",
        )
    skew_s = (SystemClock().wall_us() - reply.wall_us) / 1e6
    if abs(skew_s) > MAX_SKEW_S:
        raise bad_request(
            f"node {joining.node_id} has a clock {abs(skew_s):.0f} s "
            f"{'ahead of' if skew_s > 0 else 'behind'} the service's; set it (chrony, "
            "systemd-timesyncd), and join again with the same token"
        )
    _write(joining, reply)


def _write(joining: JoinedHost, told: pb.JoinNodeReply) -> None:
    """Write what the agent is to be; a later one has the address of the first."""
    former = joining.place / "address"
    listen = joining.listen
    if listen.endswith(":0") and former.exists():
        listen = former.read_text()
    config = JoinConfig(
        node_id=joining.node_id,
        listen=listen,
        is_replacement=former.exists(),
        directory=joining.directory,
        certificate=told.certificate,
        authority=told.authority,
        version=told.version,
        roots=tuple(map(Path, told.roots)),
        pool=joining.pool,
    )
    write_private(joining.place / _CONFIG, toml.dumps(config))


def _run(place: Path, *, on_up: Callable[[str], None]) -> int:
    log_path = place / "agent.log"
    module = (sys.executable, "-m", "plexsvc.node.join", "--config", str(place / _CONFIG))
    with log_path.open("ab") as log:
        agent = subprocess.Popen(
            (*module, "--parent-death", str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.terminate())
    try:
        assert agent.stdout is not None
        line = agent.stdout.readline()
        if not line:
            raise unavailable(f"the agent did not start; its log {log_path} ends: {tail(log_path)}")
        on_up(str(json.loads(line)["address"]))
        return agent.wait()
    finally:
        with suppress(ProcessLookupError):
            agent.terminate()
        agent.wait()
