"""Leadership of a PostgreSQL database: which service leads the cluster whose state it holds.

Theory of operation. The leader's session has an advisory lock. The server takes it back when the
session ends, so a leader that is killed has a successor at once. One that stands still keeps its
session: a row says, by the server's clock, until when it leads, and a thread renews it. Whoever
finds it over ends that session. After the server itself was started again nobody has the lock;
until the row is over, it is for the leader who wrote that.

This says who may begin. What keeps a leader that was replaced from changing anything is its epoch,
which the store, agents, state managers and ranks compare.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from plexsvc.errors import unavailable
from plexsvc.log import Log

log = Log(__name__)

LEASE_S: Final = 5.0
"""How long a leader that stands still keeps others waiting: far less than agents do
(`scheduler.node_lease_us`), so that no node is lost over it."""
RENEWALS: Final = 4
"""Renewals in that time."""
RETRY_S: Final = 0.2
"""Pause before a server that does not answer is asked again."""

_NOTICES: Final = {
    "connect_timeout": 2,
    "tcp_user_timeout": 2000,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}
"""Has a session end within seconds of the line to its server."""

_LOCK: Final = "select pg_try_advisory_lock(hashtext('plexsvc'), 1)"
_UNLOCK: Final = "select pg_advisory_unlock(hashtext('plexsvc'), 1)"
_IS_THERE: Final = "select to_regclass('leader') is not null"
_ROW: Final = """
    select holder, until < clock_timestamp() as is_over,
           renewed < pg_postmaster_start_time() as is_from_before
    from leader
"""
_END_OVER: Final = """
    select pg_terminate_backend(l.pid) from pg_locks l join leader on leader.session = l.pid
    where l.locktype = 'advisory' and l.granted
      and (leader.until < clock_timestamp() or leader.holder = :holder)
"""
_TAKE: Final = """
    insert into leader (id, holder, session, renewed, until)
    values (1, :holder, pg_backend_pid(), clock_timestamp(),
            clock_timestamp() + make_interval(secs => :lease_s))
    on conflict (id) do update set holder = excluded.holder, session = excluded.session,
        renewed = excluded.renewed, until = excluded.until
"""


class Leadership:
    """One service's claim to a database. All calls block.

    Attributes:
        took_over: whether another led before and did not end what it ran, once it is taken.
        is_awaited: whether whoever leads lost its session with the server, and may come back in
            `LEASE_S` at most.
        on_lost: called from a thread when another service leads.
    """

    def __init__(self, url: str, *, holder: str) -> None:
        self._engine = sa.create_engine(
            url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool, connect_args=_NOTICES
        )
        self._holder = holder
        self._session: sa.Connection | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.took_over = self.is_awaited = False
        self.on_lost: Callable[[], object] = lambda: None

    def try_take(self) -> str | None:
        """Take the lead if nobody has it; return who has.

        Raises:
            PlexError: `unavailable` when the database does not answer.
        """
        try:
            leader = self._try_take()
        except SQLAlchemyError as error:
            self._drop()
            shown = self._engine.url.render_as_string(hide_password=True)
            raise unavailable(f"the store {shown} does not answer: {error}") from error
        if leader is None:
            self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
            self._thread.start()
        return leader

    def close(self, *, ends_all: bool) -> None:
        """Let others lead. With `ends_all` they need not look for what this one ran."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            try:
                if ends_all:
                    self._run_sql("delete from leader where holder = :holder", holder=self._holder)
            except SQLAlchemyError as error:
                log.warning("the lead could not be given back", error=error)
        self._drop()
        self._engine.dispose()

    def _try_take(self) -> str | None:
        is_free = self._run_sql(_LOCK).scalar_one()
        row = self._row()
        self.is_awaited = False
        if not is_free:
            if row is not None:
                self._run_sql(_END_OVER, holder=self._holder)
            return "another service" if row is None else str(row.holder)
        if row is not None and row.is_from_before and not row.is_over:
            # The server was started again, which ended the leader's session: it comes back.
            self._run_sql(_UNLOCK)
            self.is_awaited = True
            return str(row.holder)
        self.took_over = row is not None
        self._renew()
        return None

    def _run(self) -> None:
        pause_s = LEASE_S / RENEWALS
        while not self._stopped.wait(pause_s):
            try:
                has_lead = self._keep()
            except SQLAlchemyError as error:
                log.warning("the lead was not renewed", error=error)
                self._drop()
                pause_s = RETRY_S
                continue
            if not has_lead:
                self.on_lost()
                return
            pause_s = LEASE_S / RENEWALS

    def _keep(self) -> bool:
        """Renew the lead, with a new session if the last one ended; return whether it is ours."""
        is_new = self._session is None
        row = self._row()
        if row is not None and row.holder != self._holder:
            return False
        if is_new and not self._run_sql(_LOCK).scalar_one():
            self._run_sql(
                _END_OVER, holder=self._holder
            )  # our own last session, of which the server has not heard
            return True
        self._renew()
        return True

    def _renew(self) -> None:
        if self._run_sql(_IS_THERE).scalar_one():  # a new database gets its tables later
            self._run_sql(_TAKE, holder=self._holder, lease_s=LEASE_S)

    def _row(self) -> Any:
        if not self._run_sql(_IS_THERE).scalar_one():
            return None
        return self._run_sql(_ROW).one_or_none()

    def _run_sql(self, text: str, **values: str | float) -> Any:
        if self._session is None:
            self._session = self._engine.connect()
        return self._session.execute(sa.text(text), values)

    def _drop(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.invalidate()
            session.close()
