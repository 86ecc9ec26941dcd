"""The package's public names: all there, and imported only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import plexclient as plex

PROGRAM = """
import sys
import plexclient.errors, plexclient.ids
import plexclient.wire.v1.operations_pb2
assert "grpc" not in sys.modules, "ids, errors and messages must not load gRPC"
import plexclient as plex
plex.connect
assert "grpc" in sys.modules
"""


@pytest.mark.parametrize("name", plex.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(plex, name) is getattr(plex, name)
    assert name in dir(plex)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'plexclient' has no attribute 'conect'"):
        plex.conect  # type: ignore[attr-defined]  # noqa: B018 - the lookup is the test


def test_grpc_is_loaded_by_the_first_name_that_needs_it() -> None:
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
