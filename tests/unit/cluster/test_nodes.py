"""What `plexctl up` makes of a machine's GPUs."""

from __future__ import annotations

from pathlib import Path

from plexsvc import config as configuration
from plexsvc.cluster.config import DEFAULT_NODES, ClusterConfig
from plexsvc.cluster.nodes import plan
from plexsvc.node.toml import dumps
from plexsvc.statelink.cuda import Gpu

GIB = 1 << 30


def gpus(count: int) -> list[Gpu]:
    return [Gpu(index=index, name="H200", nbytes=140 * GIB) for index in range(count)]


def test_a_machine_without_gpus_has_small_devices_on_its_cpu() -> None:
    assert plan([]) is DEFAULT_NODES


def test_a_single_gpu_trains_and_generates_within_what_it_has() -> None:
    (node,) = plan(gpus(1))
    assert [(d.kind, d.memory, d.gpu) for d in node.devices] == [
        ("train", "cuda", 0),
        ("rollout", "cuda", 0),
    ]
    assert sum(device.bytes_total for device in node.devices) <= 0.9 * 140 * GIB
    assert node.host_bytes > 0


def test_several_gpus_train_and_generate_apart() -> None:
    (node,) = plan(gpus(3))
    assert [(d.kind, d.gpu) for d in node.devices] == [("train", 0), ("train", 1), ("rollout", 2)]
    assert all(device.bytes_total < 140 * GIB for device in node.devices)


def test_a_shared_gpu_can_be_written_in_a_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    config = ClusterConfig(state_dir=tmp_path, nodes=plan(gpus(1)))
    path.write_text(dumps(config))
    assert configuration.load(path, ClusterConfig).nodes == config.nodes
