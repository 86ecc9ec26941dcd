"""A host that refuses is reached; a port that refuses does not serve."""

from __future__ import annotations

import socket

from plexsvc.node.reaching import reaches_any, serves


async def test_a_port_that_refuses_is_of_a_host_that_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        assert await serves(there)
        assert await reaches_any(["127.0.0.1:none", there])
    assert not await serves(there)
    assert await reaches_any([there])
    assert not await reaches_any(["127.0.0.1:none"])
