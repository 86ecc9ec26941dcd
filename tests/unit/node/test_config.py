"""Where the processes of a node listen, and what a Spawn may say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.config import AgentConfig, DeviceConfig, HostShare, check_node


def config(listen: str = "") -> AgentConfig:
    return AgentConfig(
        node_id="n0",
        devices=(DeviceConfig(kind="train", bytes_total=1),),
        runtime_dir=Path("/run/n0"),
        keys_file=Path("/keys.json"),
        listen=listen,
    )


def test_without_an_address_a_node_listens_on_sockets_in_its_own_directory() -> None:
    assert config().host == config("unix:/run/n0/agent.sock").host == ""
    assert config().address("p7") == "unix:/run/n0/p7.sock"


def test_with_an_address_every_process_takes_a_port_of_it() -> None:
    assert config("10.0.0.7:50061").host == "10.0.0.7"
    assert config("10.0.0.7:50061").address("p7") == "10.0.0.7:0"
    assert config("10.0.0.7:50061").address("state", port=9) == "10.0.0.7:9"


@pytest.mark.parametrize("listen", ["0.0.0.0:50061", "[::]:50061", ":50061"])
def test_an_address_that_tells_nobody_where_the_node_is_is_refused(listen: str) -> None:
    with pytest.raises(PlexError, match="the address by which other hosts reach") as refused:
        config(listen)
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_a_spawn_names_an_image_and_can_name_neither_function_nor_environment() -> None:
    fields = set(node_pb2.ProcSpec.DESCRIPTOR.fields_by_name)
    named = {"proc_id", "image", "config_json", "job_id", "tenant", "wpg_id", "rank", "shares"}
    assert fields == named
    entrypoints = {image.name: image.entrypoint for image in config().images}
    assert entrypoints == {
        "train": "plexsvc.worker.main:main",
        "rollout": "plexsvc.rollout.forked:main",
        "reward": "plexsvc.reward.host:main",
        "manager": "plexsvc.rollout.main:main",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "reward"}, "cpus is None"),
        ({"kind": "reward", "cpus": 0}, "has 1 at least"),
        ({"kind": "train", "cpus": 2}, "no other has any"),
        ({"kind": "reward", "cpus": 2, "gpu": 0}, "no other has any"),
        ({"kind": "reward", "memory": "cuda"}, "gpu of a reward device"),
        ({"kind": "reward", "gpu": -1}, "gpu is -1"),
        ({"kind": "train", "gpu": 0}, "a cuda device has a gpu"),
    ],
)
def test_a_device_for_rewards_has_processors_or_a_gpu_and_others_have_no_processors(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlexError, match=message) as refused:
        DeviceConfig(bytes_total=1, **given)
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_a_gpu_for_rewards_is_no_other_devices() -> None:
    held = DeviceConfig(kind="reward", bytes_total=1, memory="cuda", gpu=1)
    shared = DeviceConfig(kind="train", bytes_total=1, memory="cuda")
    check_node("n0", (shared, held), HostShare())
    with pytest.raises(PlexError, match="gpu 1 of node n0 is of kind reward and another"):
        check_node("n0", (shared, shared, held), HostShare())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "train", "tp": 2}, "tp is 2, kind 'train'"),
        ({"kind": "rollout", "tp": 1}, "tp from 2"),
        ({"kind": "rollout", "tp": 2, "memory": "cuda"}, "gpu of a device with tp = 2 is missing"),
    ],
)
def test_a_device_of_tensor_ranks_is_for_rollouts_and_says_its_first_gpu(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlexError, match=message):
        DeviceConfig(bytes_total=1, **given)


def test_tensor_ranks_share_their_gpus_with_nobody() -> None:
    alone = DeviceConfig(kind="train", bytes_total=1, memory="cuda", gpu=0)
    wide = DeviceConfig(kind="rollout", bytes_total=2, memory="cuda", gpu=1, tp=2)
    check_node("n0", (alone, wide), HostShare())
    assert [one.placed_as for one in (alone, wide)] == ["train", "rollout-tp2"]
    for other in ({"gpu": 2}, {}):  # by default the GPU of its index, which is 1
        shared = DeviceConfig(kind="train", bytes_total=1, memory="cuda", **other)
        with pytest.raises(PlexError, match="is of a device with tp = 2 and of another"):
            check_node("n0", (wide, shared), HostShare())


@pytest.mark.parametrize(("nbytes", "directory"), [(-1, "/disk"), (1, ""), (1, "disk")])
def test_a_disk_for_state_has_bytes_and_a_whole_path(nbytes: int, directory: str) -> None:
    train = (DeviceConfig(kind="train", bytes_total=1),)
    with pytest.raises(PlexError, match="whole path"):
        check_node("n0", train, HostShare(disk_bytes=nbytes, disk_dir=Path(directory)))
