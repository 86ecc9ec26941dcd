"""A host that joins: its private key stays, its token is used once, another cluster is refused."""

from __future__ import annotations

import io
import json
import stat
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc import config as configuration
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node import joined
from plexsvc.node.config import DeviceConfig
from plexsvc.node.join import JoinConfig, PoolConfig, take_keys
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import ClusterKeys, read_keys
from tests.rigs.keys import FOREIGN, KEYS

TRAIN = DeviceConfig(kind="train", bytes_total=1 << 20)


class FakeRouter:
    """Signs what is asked of it, and keeps it."""

    def __init__(self, keys: ClusterKeys = KEYS, *, skew_us: int = 0) -> None:
        self.keys = keys
        self.skew_us = skew_us
        self.asked: list[pb.JoinNodeRequest] = []

    def ask(self, request: pb.JoinNodeRequest) -> pb.JoinNodeReply:
        copy = pb.JoinNodeRequest()
        copy.CopyFrom(request)
        self.asked.append(copy)
        signed = certificates.sign(
            request.request,
            authority=self.keys.certificate,
            private_key=self.keys.private_key,
            now_us=SystemClock().wall_us(),
        )
        return pb.JoinNodeReply(
            certificate=signed,
            authority=self.keys.certificate,
            version=version("plexsvc"),
            wall_us=SystemClock().wall_us() + self.skew_us,
        )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[JoinConfig]:
    """What agents were started with; each serves at the port that it was given, or at 7."""
    found: list[JoinConfig] = []

    class FakeAgent:
        def __init__(self, argv: tuple[str, ...], **_: object) -> None:
            config = configuration.load(Path(argv[argv.index("--config") + 1]), JoinConfig)
            take_keys(config)
            found.append(config)
            address = config.listen.removesuffix(":0") + (":7" if ":0" in config.listen else "")
            self.stdout = io.BytesIO(json.dumps({"address": address}).encode())

        def terminate(self) -> None: ...

        def wait(self) -> int:
            return 3

    monkeypatch.setattr("plexsvc.node.joined.subprocess.Popen", FakeAgent)
    monkeypatch.setattr("plexsvc.node.joined.signal.signal", lambda *_: None)
    return found


def joining(tmp_path: Path, token: str = f"tok-1.secret.{KEYS.digest}") -> joined.JoinedHost:
    return joined.JoinedHost(
        node_id="n1",
        token=token,
        listen="10.0.0.7:0",
        directory=tmp_path,
        pool=PoolConfig(devices=(TRAIN,)),
    )


def test_it_joins_once_and_its_private_key_stays(tmp_path: Path, started: list[JoinConfig]) -> None:
    router, up = FakeRouter(), list[str]()
    assert joined.join(joining(tmp_path), router.ask, on_up=up.append) == 3
    keys = read_keys(tmp_path / "n1" / "keys.json")
    assert [request.agent for request in router.asked] == ["", "10.0.0.7:7"]
    assert all(keys.private_key not in str(request) for request in router.asked)
    assert certificates.read(keys.certificate).node_id == "n1"
    assert keys.authority == KEYS.certificate
    assert KEYS.secret != keys.secret
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "n1").glob("*.pem")} == {0o600}
    for token in (joining(tmp_path).token, ""):  # the host starts again
        assert joined.join(joining(tmp_path, token), router.ask, on_up=up.append) == 3
    assert len(router.asked) == 2
    assert [config.listen for config in started] == ["10.0.0.7:0"] + ["10.0.0.7:7"] * 2
    assert [config.is_replacement for config in started] == [False, True, True]
    assert read_keys(tmp_path / "n1" / "keys.json") == keys
    other = joining(tmp_path, f"tok-2.secret.{KEYS.digest}")
    joined.join(other, router.ask, on_up=up.append)
    again = read_keys(tmp_path / "n1" / "keys.json")
    assert (again.private_key, again.certificate != keys.certificate) == (keys.private_key, True)
    assert up == ["10.0.0.7:7"] * 4


def test_another_cluster_is_refused_and_nothing_of_it_is_kept(
    tmp_path: Path, started: list[JoinConfig]
) -> None:
    with pytest.raises(PlexError, match="not the cluster that the token is of") as refused:
        joined.join(joining(tmp_path), FakeRouter(FOREIGN).ask, on_up=print)
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
    assert not (tmp_path / "n1" / "keys.json").exists()
    assert started == []


@pytest.mark.parametrize(("skew_us", "why"), [(7_200_000_000, "behind"), (-90_000_000, "ahead")])
def test_a_host_with_a_wrong_clock_starts_nothing(
    tmp_path: Path, started: list[JoinConfig], skew_us: int, why: str
) -> None:
    with pytest.raises(PlexError, match=f"n1 has a clock .* s {why}") as refused:
        joined.join(joining(tmp_path), FakeRouter(skew_us=skew_us).ask, on_up=print)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert started == []
    assert joined.join(joining(tmp_path), FakeRouter().ask, on_up=print) == 3  # it was set


def test_a_host_that_never_joined_needs_a_token(tmp_path: Path, started: list[JoinConfig]) -> None:
    with pytest.raises(PlexError, match="has not joined"):
        joined.join(joining(tmp_path, ""), FakeRouter().ask, on_up=print)
    with pytest.raises(PlexError, match="name is"):
        joined.join(replace(joining(tmp_path), node_id="a b"), FakeRouter().ask, on_up=print)
    assert started == []
