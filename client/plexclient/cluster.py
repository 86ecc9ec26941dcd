"""The connection to a cluster: it makes jobs and owns the event loop and the channel."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Self

from plexclient import environment
from plexclient.background import Background
from plexclient.calls import call
from plexclient.checks import of_type, real, text, whole
from plexclient.clock import MonotonicClock, RetryClock
from plexclient.errors import bad_request
from plexclient.ids import JobId, new_job_id
from plexclient.job import Job
from plexclient.link import Link, bearer, dialed, router_tls
from plexclient.options import ClientOptions
from plexclient.retry import Retry, persist
from plexclient.session import Session
from plexclient.wire.v1 import service_pb2

MAX_TTL_S: Final = 1e9
"""Longest session a client may ask for; the service has a shorter limit of its own."""
MAX_STEPS: Final = 1_000_000_000


class Cluster:
    """A connection; `with plex.connect(...) as cluster` closes it. Safe to use from any thread."""

    def __init__(
        self,
        address: str,
        *,
        token: str,
        ca: str,
        job_id: str,
        options: ClientOptions,
        clock: RetryClock,
    ) -> None:
        self.address = address
        self.background = Background()
        self._options = options
        self._clock = clock
        self._adoptable = job_id
        self._scratch = tempfile.TemporaryDirectory(prefix="plexclient-")
        self._sessions: list[Session] = []
        self._is_closed = False
        self._link = self.background.run(lambda: _open(address, token=token, ca=ca))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def job(
        self,
        name: str,
        *,
        session_ttl_s: float = 0.0,
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        max_slowdown: float = 0.0,
        expected_steps: int = 0,
        resume: bool = False,
    ) -> Job:
        """Return a job to be used as `with cluster.job(name) as job:`.

        The service cancels it when it heard nothing for `session_ttl_s` (0: the service's default).
        Of jobs that wait for devices one of higher `priority` goes first; above 0 an operator must
        grant it (`scheduler.tenant_priorities`). `max_slowdown` bounds how much longer
        a cycle may get by sharing devices, 1.2 = 20 % (0: the service's default).
        `expected_steps` says how many rounds of its loop the job will train (0: not said): with it
        the service knows how long the job will hold its devices. It promises nothing.
        With `resume` it is the live job of that name whose controller died, if there is one: see
        `Job`. A name that still runs is refused with `bad_request`. A controller that `plexctl
        submit --restarts` started again resumes its job anyway.
        In a controller that `plexctl submit` started, the first job is the submitted one. It ends
        with its block, or with the controller if an error leaves the block.

        Raises:
            PlexError: `bad_request` for a number, a name or labels that no job can have.
        """
        given = {} if labels is None else labels
        of_type("labels", given, Mapping, takes="a dict of texts by name")
        adopted, restarts = self._adoptable, environment.read().restarts
        request = service_pb2.CreateJobRequest(
            job_id=adopted or new_job_id(),
            name=text("name", name),
            session_ttl_us=int(real("session_ttl_s", session_ttl_s, least=0, most=MAX_TTL_S) * 1e6),
            labels={
                text("a label's name", key): text(f"label {key!r:.40}", value)
                for key, value in given.items()
            },
            priority=whole("priority", priority, least=-(2**31)),
            max_slowdown=real("max_slowdown", max_slowdown, least=0),
            expected_steps=whole("expected_steps", expected_steps, least=0, most=MAX_STEPS),
            resume_id=new_job_id() if (restarts if adopted else resume) else "",
            is_seen_dead=bool(adopted),
        )
        # Only the first job of a controller is the submitted one.
        self._adoptable = ""
        session = Session(
            JobId(request.job_id),
            link=self._link,
            background=self.background,
            options=self._options,
            clock=self._clock,
        )
        self._sessions.append(session)
        return Job(
            session,
            request=request,
            is_adopted=bool(adopted),
            cache_dir=self._options.cache_dir or Path(self._scratch.name),
        )

    @call
    def status(self) -> Future[service_pb2.ClusterStatus]:
        """Return the cluster's nodes, devices, jobs and deployments."""
        request = service_pb2.GetStatusRequest()

        async def ask() -> service_pb2.ClusterStatus:
            options = self._options
            retry = Retry(
                self._clock,
                retry_for_s=options.retry_for_s,
                give_up_after_s=options.operation_timeout_s,
                what="the cluster's status",
            )
            reply: service_pb2.ClusterStatus = await persist(
                lambda: self._link.unary("GetStatus", request, timeout_s=options.rpc_timeout_s),
                retry=retry,
            )
            return reply

        return self.background.start(ask)

    def close(self) -> None:
        """Close the connection; calls that have no answer yet raise `cancelled`. Safe to repeat.

        In a fork of the process that connected, nothing happens.
        """
        if self._is_closed or not self.background.is_own:
            return
        self.background.check_may_block()  # before anything is marked as closed
        self._is_closed = True
        for session in self._sessions:
            session.stop()
        self.background.run(self._link.close)
        self.background.close()
        self._scratch.cleanup()


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    options: ClientOptions | None = None,
    clock: RetryClock | None = None,
) -> Cluster:
    """Return a connection to the router at `host:port`, or at one of several, with commas between.

    A connection that ends is made again, to whichever answers: routers, or a standby.

    `ca` is a PEM file of the certificate by which the router is known, or of who signed it; an
    empty one: the router speaks in clear. What is not given comes from PLEX_ADDRESS, PLEX_TOKEN and
    PLEX_CA, which `plexctl submit` sets. Nothing is sent yet: an unreachable router shows with the
    first call.

    Raises:
        PlexError: `bad_request` when there is no address, it has no port, no call can carry
            `token`, or `ca` cannot be read.
    """
    found = environment.read()
    target = found.address if address is None else address
    if not target:
        raise bad_request(
            "connect() has no address: pass 'host:port', set PLEX_ADDRESS, or run the script with "
            "`plexctl submit`"
        )
    dialed(target)  # refused here, before anything is started
    own = found.token if token is None else token
    bearer(own)  # the same
    signed_by = found.ca if ca is None else ca
    router_tls(signed_by)  # the same
    return Cluster(
        target,
        token=own,
        ca=signed_by,
        job_id=found.job_id,
        options=options or ClientOptions(),
        clock=clock or MonotonicClock(),
    )


async def _open(address: str, *, token: str, ca: str) -> Link:
    # A coroutine although it awaits nothing: a channel belongs to the loop that it is made on.
    return Link(address, token=token, ca=ca)
