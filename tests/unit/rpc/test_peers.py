"""Peers: who serves at an address is who its certificate says, and was not shut out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import certificates
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import SHUT_OUT, ClusterKeys, write_keys, write_shut_out
from plexsvc.rpc.peers import Peers
from tests.rigs.keys import FOREIGN, KEYS, member, signed


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
        await shown(node, to=replace(KEYS, file=tmp_path / "keys.json"))
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
    for stranger in (FOREIGN, member("n1", of=FOREIGN), member("n1", valid_us=-1)):
        with pytest.raises(PlexError, match="no member of this cluster") as refused:
            await shown(stranger, to=KEYS)
        assert refused.value.code is ErrorCode.UNAVAILABLE


async def test_a_server_shows_the_certificate_that_its_file_has_by_now(tmp_path: Path) -> None:
    node = replace(member("n1", valid_us=3_600_000_000), file=tmp_path / "keys.json")
    server = new_server(node)
    address = listen(server, "127.0.0.1:0", node, key="test")
    await server.start()
    ended = signed(certificates.request_for(node.private_key, node_id="n1"), valid_us=-1)
    assert await Peers(KEYS, timeout_s=20).node_at(address) == "n1"
    write_keys(tmp_path / "keys.json", replace(node, certificate=ended))
    with pytest.raises(PlexError, match="certificate has expired"):
        await Peers(KEYS, timeout_s=20).node_at(address)
    write_keys(tmp_path / "keys.json", node)
    assert await Peers(KEYS, timeout_s=20).node_at(address) == "n1"
    await server.stop(0)
