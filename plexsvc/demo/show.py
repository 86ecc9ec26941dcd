"""Live display of the demo: its acts, and the cluster's tables as `plexctl status` has them."""

from __future__ import annotations

import time
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.stage import GOING_ON, Look
from plexsvc.show.rewards import batches_view
from plexsvc.show.status import status_view

_PLAIN_EVERY_S: Final = 10.0


class Show:
    """A view that a terminal renews; elsewhere it is printed now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._live = Live(console=console, refresh_per_second=2, transient=True)
        self._print_after_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def act(self, title: str) -> None:
        """Begin a part of the demo."""
        now = f"[dim]{time.monotonic() - self._started_s:6.1f} s[/dim]"
        self._console.print(f"{now}  [bold]{title}[/bold]", soft_wrap=True)

    def look(self, look: Look) -> None:
        """Show what the service said of the jobs that go on, and of its reward workers."""
        status, _, rewards = look
        shown = service_pb2.ClusterStatus()
        shown.CopyFrom(status)
        del shown.jobs[:]
        shown.jobs.extend(job for job in status.jobs if job.state in GOING_ON)
        view = Group(status_view(shown), *([batches_view(rewards)] if rewards.batches else []))
        if self._console.is_terminal:
            self._live.update(view)
        elif time.monotonic() >= self._print_after_s:
            self._print_after_s = time.monotonic() + _PLAIN_EVERY_S
            self._console.print(view, highlight=False)
