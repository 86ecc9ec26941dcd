"""A cluster's configuration: what is deployed reads, and paths stay short enough for sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from plexsvc import config as configuration
from plexsvc.cluster.config import ClusterConfig
from plexsvc.cluster.embedded import _runtime_dir, _with_rewards
from plexsvc.cluster.places import make_state_dir
from plexsvc.errors import ErrorCode, PlexError

ROOT = Path(__file__).parents[3]
TRAIN = {"kind": "train", "bytes_total": 1}


def test_the_deployed_configuration_reads() -> None:
    config = configuration.load(ROOT / "deploy" / "cluster.toml", ClusterConfig)
    assert [device.kind for device in config.nodes[0].devices] == ["train", "rollout", "rollout"]


def test_systemd_leaves_what_the_next_service_adopts() -> None:
    lines = (ROOT / "deploy" / "plexsvc.service").read_text().splitlines()
    assert "KillMode=process" in lines  # any other ends the agents of a service that was killed
    assert "ReadWritePaths=/tmp" in lines
    assert not any(line.startswith("PrivateTmp") for line in lines)  # their sockets are in /tmp


def test_the_configuration_for_ray_reads_and_has_no_nodes_of_its_own() -> None:
    config = configuration.load(ROOT / "deploy" / "ray" / "cluster.toml", ClusterConfig)
    assert config.ray.pools["rollout"].kind == "rollout"
    assert _with_rewards(config) == ()


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"launcher": "slurm"}, "local or ray"),
        ({"launcher": "ray"}, r"ray\.address"),
        ({"ray": {"address": "10.0.0.1:6379"}}, 'set launcher = "ray"'),
        ({"launcher": "ray", "nodes": [{"node_id": "a", "devices": [TRAIN]}]}, r"ray\.pools"),
    ],
)
def test_a_launcher_with_what_another_needs_is_refused(table: dict[str, object], word: str) -> None:
    with pytest.raises(PlexError, match=word):
        configuration.parse(table, ClusterConfig, where="test")


def test_a_limit_of_any_part_can_be_set_and_a_misspelt_one_is_refused() -> None:
    table = {"scheduler": {"max_jobs": 3}, "router": {"operators": ["o"]}}
    config = configuration.parse(table, ClusterConfig, where="test")
    assert (config.scheduler.max_jobs, config.router.operators) == (3, ("o",))
    with pytest.raises(PlexError, match="max_promts"):
        configuration.parse({"router": {"max_promts": 5}}, ClusterConfig, where="test")


@pytest.mark.parametrize(
    ("router", "word"),
    [
        ({"roots": {"lab": ["/srv"]}}, "/srv holds"),
        ({"roots": {"lab": ["/srv/plex/nodes"]}}, "/srv/plex/nodes lies in"),
        ({"model_roots": ["/srv/plex"]}, "/srv/plex holds"),
        ({"checkpoint_root": "/"}, "/ holds"),
    ],
)
def test_a_root_that_shows_the_cluster_s_keys_to_a_tenant_is_refused(
    router: dict[str, object], word: str
) -> None:
    table = {"state_dir": "/srv/plex", "router": router}
    with pytest.raises(PlexError, match=f"root {word} the state directory") as refused:
        configuration.parse(table, ClusterConfig, where="test")
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_roots_beside_the_state_and_its_own_models_are_taken() -> None:
    router = {"roots": {"lab": ["/srv/plex/models/lab", "/srv/plexus"]}}
    table = {"state_dir": "/srv/plex", "router": router}
    assert configuration.parse(table, ClusterConfig, where="test").router.roots["lab"]


DEVICE = {"kind": "train", "bytes_total": 1 << 20}


@pytest.mark.parametrize(
    ("nodes", "word"),
    [
        ([{"node_id": "a"}], r"test\.nodes\[0\]: devices must be given"),
        ([{"node_id": "a", "devices": []}], "no devices"),
        ([{"node_id": "a/b", "devices": [DEVICE]}], "a-z A-Z 0-9"),
        ([{"node_id": "..", "devices": [DEVICE]}], "a-z A-Z 0-9"),
        ([{"node_id": "a", "devices": [DEVICE]}] * 2, "two nodes are called 'a'"),
        ([{"node_id": "a", "devices": [DEVICE | {"kind": "gpu"}]}], "train, rollout, spot"),
        (
            [{"node_id": "a", "devices": [DEVICE | {"bytes_total": -5}]}],
            "bytes_total: -5 is below 0",
        ),
        ([{"node_id": "a", "devices": [DEVICE], "host_bytes": 0}], "host_bytes of node a is 0"),
    ],
)
def test_a_node_that_could_not_be_is_refused_before_anything_starts(
    nodes: list[dict[str, object]], word: str
) -> None:
    with pytest.raises(PlexError, match=word) as caught:
        configuration.parse({"nodes": nodes}, ClusterConfig, where="test")
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_a_state_directory_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlexError, match=r"cannot keep state in .*/file/below"):
        make_state_dir(tmp_path / "file" / "below")


async def test_a_long_state_directory_gets_a_short_runtime_directory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        assert _runtime_dir(Path("/s"), stack) == Path("/s/run")
        short = _runtime_dir(tmp_path / ("x" * 100), stack)
        assert len(str(short / "data.sock")) < 107
        assert short.stat().st_mode & 0o777 == 0o700
    assert not short.exists()


def test_a_cluster_that_says_nothing_of_rewards_gives_them_its_first_node() -> None:
    others = [TRAIN]
    nodes = [{"node_id": "a", "devices": [TRAIN]}, {"node_id": "b", "devices": others}]
    table = {"nodes": nodes, "reward": {"max_workers": 3}}
    first, second = _with_rewards(configuration.parse(table, ClusterConfig, where="test"))
    assert [(device.kind, device.cpus) for device in first.devices] == [
        ("train", None),
        ("reward", 3),
    ]
    assert [device.kind for device in second.devices] == ["train"]
    others.append({"kind": "reward", "cpus": 1, "bytes_total": 1})
    told = configuration.parse(table, ClusterConfig, where="test")
    assert _with_rewards(told) == told.nodes


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:7000"])
def test_an_address_for_rewards_that_tells_routers_nothing_is_refused(listen: str) -> None:
    with pytest.raises(PlexError, match=r"reward\.listen") as refused:
        configuration.parse({"reward": {"listen": listen}}, ClusterConfig, where="test")
    assert refused.value.code is ErrorCode.BAD_REQUEST
