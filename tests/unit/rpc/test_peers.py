"""Peers: who serves at an address is who its certificate says, and was not shut out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import certificates
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import SHUT_OUT, ClusterKeys, write_shut_out
from plexsvc.rpc.peers import Peers
from tests.rigs.keys import FOREIGN, KEYS, member


async def shown(keys: ClusterKeys, *, to: ClusterKeys) -> str:
    server = new_server(keys)
    address = listen(server, "127.0.0.1:0", keys, key="test")
    await server.start()
    try:
        return await Peers(to, timeout_s=20).node_at(address)
    finally:
        await server.stop(0)


async def test_an_agent_is_known_by_its_certificate(tmp_path: Path) -> None:
    node = member("n1")
    assert await shown(node, to=KEYS) == "n1"
    assert await shown(KEYS, to=node) == ""
    assert await Peers(KEYS, timeout_s=1).node_at(f"unix:{tmp_path}/agent.sock") == ""


async def test_who_is_foreign_expired_or_shut_out_is_not_spoken_to(tmp_path: Path) -> None:
    node = member("n1")
    write_shut_out(tmp_path / SHUT_OUT, [certificates.read(node.certificate).serial])
    with pytest.raises(PlexError, match="node 'n1' was shut out") as refused:
        await shown(node, to=replace(KEYS, shut_out=tmp_path / SHUT_OUT))
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
    for stranger in (FOREIGN, member("n1", of=FOREIGN), member("n1", valid_us=-1)):
        with pytest.raises(PlexError, match="no member of this cluster") as refused:
            await shown(stranger, to=KEYS)
        assert refused.value.code is ErrorCode.UNAVAILABLE
