"""A host becomes a node if it fits, and is refused by name before anything starts if not."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from plexsvc import config as configuration
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.config import DeviceConfig
from plexsvc.node.join import (
    JoinConfig,
    PoolConfig,
    agent_config,
    hold,
    keys_file,
    place_of,
    private_key,
    take_keys,
)
from plexsvc.node.toml import dumps
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import read_keys
from plexsvc.statelink.cuda import Gpu
from tests.rigs.keys import FOREIGN, KEYS, member

GPUS = [Gpu(index=index, name="H200", nbytes=140 << 30) for index in range(2)]
TRAIN = DeviceConfig(kind="train", bytes_total=1 << 20)


@pytest.fixture
def config(tmp_path: Path) -> JoinConfig:
    return JoinConfig(
        node_id="n",
        listen="10.0.0.7:0",
        directory=tmp_path,
        certificate="of n",
        authority="of the service",
        version=version("plexsvc"),
        roots=(tmp_path,),
        pool=PoolConfig(devices=(TRAIN,)),
    )


def test_a_host_has_the_devices_of_its_pool_and_by_default_half_of_its_memory(
    config: JoinConfig,
) -> None:
    made = agent_config(config, GPUS)
    assert (made.node_id, made.devices, made.listen) == ("n", (TRAIN,), "10.0.0.7:0")
    assert made.host_bytes > 1 << 30
    assert made.orphan_us == config.pool.orphan_us


def test_a_pool_without_devices_has_the_gpus_that_are_found(config: JoinConfig) -> None:
    found = {
        kind: agent_config(replace(config, pool=PoolConfig(kind=kind)), GPUS).devices
        for kind in ("", "rollout")
    }
    assert [device.kind for device in found[""]] == ["train", "rollout"]
    assert [(d.kind, d.gpu) for d in found["rollout"]] == [("rollout", 0), ("rollout", 1)]


def test_a_host_that_does_not_fit_is_refused(config: JoinConfig, tmp_path: Path) -> None:
    for other, word in (
        (replace(config, version="9.9"), r"the service 9\.9"),
        (replace(config, roots=(tmp_path / "none",)), "none"),
        (replace(config, pool=PoolConfig()), "no GPU"),
    ):
        with pytest.raises(PlexError, match=word) as refused:
            agent_config(other, [])
        assert refused.value.code is ErrorCode.BAD_REQUEST


def test_a_kind_is_for_gpus_that_are_found() -> None:
    for table in ({"kind": "training"}, {"kind": "train", "devices": (TRAIN,)}):
        with pytest.raises(PlexError, match="kind"):
            PoolConfig(**table)


def test_two_agents_never_have_one_directory(config: JoinConfig) -> None:
    hold(config)
    with pytest.raises(PlexError, match="another name") as refused:
        hold(config)
    assert refused.value.code is ErrorCode.UNAVAILABLE


def test_its_file_reads_as_it_was_written(config: JoinConfig, tmp_path: Path) -> None:
    (tmp_path / "join.toml").write_text(dumps(config))
    assert configuration.load(tmp_path / "join.toml", JoinConfig) == config


def test_a_renewed_certificate_outlives_the_one_that_was_given(config: JoinConfig) -> None:
    place_of(config).mkdir(parents=True)
    request = certificates.request_for(private_key(place_of(config)), node_id="n")

    def given(*, ago_us: int) -> str:
        return certificates.sign(
            request,
            authority=KEYS.certificate,
            private_key=KEYS.private_key,
            now_us=SystemClock().wall_us() - ago_us,
        )

    old, renewed, newer = (given(ago_us=us) for us in (20_000_000, 10_000_000, 0))
    for certificate, kept in ((renewed, renewed), (old, renewed), (newer, newer), (old, newer)):
        take_keys(replace(config, authority=KEYS.certificate, certificate=certificate))
        assert read_keys(keys_file(config)).certificate == kept
    other = member("n", of=FOREIGN)
    take_keys(replace(config, authority=FOREIGN.certificate, certificate=other.certificate))
    assert read_keys(keys_file(config)).authority == FOREIGN.certificate
