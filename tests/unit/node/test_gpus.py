"""Which GPU a process sees, by its device."""

from __future__ import annotations

import pytest

from plexsvc.errors import PlexError
from plexsvc.node.config import DeviceConfig
from plexsvc.node.gpus import environment, of_rewards

SHARED = (
    DeviceConfig(kind="train", bytes_total=1, memory="cuda", gpu=1),
    DeviceConfig(kind="rollout", bytes_total=1, memory="cuda", gpu=1),
    DeviceConfig(kind="rollout", bytes_total=1, memory="cuda"),
    DeviceConfig(kind="train", bytes_total=1),
)


def visible(index: int) -> str:
    return environment(SHARED, index)["CUDA_VISIBLE_DEVICES"]


def test_each_process_sees_the_gpu_of_its_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [visible(index) for index in range(4)] == ["1", "1", "2", ""]


def test_a_process_of_tensor_ranks_sees_all_gpus_of_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = DeviceConfig(kind="rollout", bytes_total=2, memory="cuda", gpu=1, tp=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment([wide], 0)["CUDA_VISIBLE_DEVICES"] == "1,2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8a,6")
    assert environment([wide], 0)["CUDA_VISIBLE_DEVICES"] == "GPU-8a,6"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(PlexError, match="GPU 2 is configured"):
        environment([wide], 0)


def test_gpus_are_counted_among_those_the_agent_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-8a")
    assert visible(0) == "GPU-8a"
    with pytest.raises(PlexError, match=r"bad_request.*GPU 2 is configured"):
        visible(2)


def test_a_device_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(PlexError, match="device 4 is asked for; this node has 4"):
        visible(4)


def test_a_gpu_belongs_to_cuda_memory() -> None:
    with pytest.raises(PlexError, match="a cuda device has a gpu"):
        DeviceConfig(kind="train", bytes_total=1, gpu=0)


def test_reward_workers_have_the_gpus_of_their_kind_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (
        DeviceConfig(kind="reward", bytes_total=1, memory="cuda", gpu=0),
        DeviceConfig(kind="reward", bytes_total=1, cpus=4),
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert of_rewards((*SHARED, *own)) == ["0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-8a")
    assert of_rewards((*SHARED, *own)) == ["4"]
