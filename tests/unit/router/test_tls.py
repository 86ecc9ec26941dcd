"""TLS of the router's own port: who has its certificate is served, who has not gets nothing."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from plexclient.link import Link, router_tls
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.tls import client_tls
from plexsvc.rpc import services
from plexsvc.rpc.channels import bind, new_server
from plexsvc.rpc.keys import ClusterKeys
from tests.rigs.keys import FOREIGN, KEYS

ROUTER = pb.DESCRIPTOR.services_by_name["Router"]


def files(place: Path, keys: ClusterKeys) -> RouterConfig:
    """Return a configuration with a certificate; any will do, and the tests have some."""
    (place / "cert.pem").write_text(keys.certificate)
    (place / "key.pem").write_text(keys.private_key)
    return RouterConfig(tls_cert=place / "cert.pem", tls_key=place / "key.pem")


async def list_jobs(_: pb.ListJobsRequest, _context: object) -> pb.ListJobsReply:
    return pb.ListJobsReply()


async def test_a_client_speaks_only_to_the_router_whose_certificate_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_server(Tenants({"t": "lab"}))
    services.add_service(server, ROUTER, calls={"ListJobs": list_jobs})
    address = bind(server, "127.0.0.1:0", client_tls(files(tmp_path, KEYS)), key="listen")
    await server.start()
    named = [("grpc.ssl_target_name_override", "plexsvc")]  # the name in the tests' certificates
    monkeypatch.setattr("plexclient.link.OPTIONS", named)
    (tmp_path / "foreign.pem").write_text(FOREIGN.certificate)
    for ca, is_known in (
        (str(tmp_path / "cert.pem"), True),
        (str(tmp_path / "foreign.pem"), False),
    ):
        link = Link(address, token="t", ca=ca)
        if is_known:
            await link.unary("ListJobs", pb.ListJobsRequest(), timeout_s=60)
        else:
            with pytest.raises(PlexError) as refused:
                await link.unary("ListJobs", pb.ListJobsRequest(), timeout_s=60)
            assert refused.value.code is ErrorCode.UNAVAILABLE
        await link.close()
    in_clear = Link(address, token="t")
    with pytest.raises(PlexError):
        await in_clear.unary("ListJobs", pb.ListJobsRequest(), timeout_s=60)
    await in_clear.close()
    await server.stop(0)


def test_half_a_pair_and_files_that_are_not_there_are_refused_by_name(tmp_path: Path) -> None:
    assert client_tls(RouterConfig()) is None
    for config in (
        RouterConfig(tls_cert=tmp_path / "a"),
        RouterConfig(tls_key=tmp_path / "a"),
        RouterConfig(tls_cert=tmp_path / "a", tls_key=tmp_path / "b"),
    ):
        with pytest.raises(PlexError, match="tls_cert"):
            client_tls(config)
    with pytest.raises(PlexError, match="ca "):
        router_tls(str(tmp_path / "none.pem"))
    assert router_tls("") is None
    assert isinstance(client_tls(files(tmp_path, KEYS)), grpc.ServerCredentials)
