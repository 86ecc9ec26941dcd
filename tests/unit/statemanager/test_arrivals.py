"""Versions of other hosts that are brought here: whoever waits for one gets it."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from plexclient.wire.v1.statemanager_pb2 import PublishedVersion, VersionHolder, VersionManifest
from plexsvc.ids import JobId
from plexsvc.statelink.far import Put, Room
from plexsvc.statemanager import arrivals
from plexsvc.statemanager.entries import Budget

NBYTES = 4096


def fake_far(*_: Any) -> SimpleNamespace:
    """Return a holder whose version is all sevens."""

    def read_into(room: Room, _manifest: VersionManifest, *, put: Put, **_how: Any) -> bool:
        block = room(0, NBYTES)
        block[:] = bytes([7]) * NBYTES
        put(0, block)
        return True

    far = SimpleNamespace(
        holder=VersionHolder(state_manager="there"),
        read_manifest=lambda version: VersionManifest(nbytes=NBYTES, version=version.version),
        read_into=read_into,
    )
    far.connected = lambda: nullcontext(far)
    return far


def test_memory_is_not_taken_back_between_an_arrival_and_its_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock, host = threading.Lock(), Budget("host", total=NBYTES)

    class Event(threading.Event):
        """Somebody else needs the memory as soon as the version is here."""

        def wait(self, timeout: float | None = None) -> bool:
            is_over = super().wait(timeout)
            with lock:
                made._spare(NBYTES)
            return is_over

    class Wanted(arrivals.Arrival):
        def __init__(self) -> None:
            super().__init__()
            self.over = Event()

    made = arrivals.Arrivals(host, lock=lock, keys=lambda: pytest.fail("nobody is called"))
    monkeypatch.setattr(arrivals, "Far", fake_far)
    monkeypatch.setattr(arrivals, "Arrival", Wanted)
    version, holder = PublishedVersion(deployment_id="job/a", version=3), VersionHolder(part="p")
    fd, manifest = made.open(version, holder, job_id=JobId("job"), tell=lambda _: None)
    assert (manifest.version, os.pread(fd, NBYTES, 0)) == (3, bytes([7]) * NBYTES)
    os.close(fd)
    with lock:
        made._spare(NBYTES)
    assert host.used == 0, "then it is given back"
