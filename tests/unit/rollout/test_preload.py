"""What a rollout zygote imports and is told, by the build of vLLM."""

from __future__ import annotations

from plexsvc.node.zygote import zygote_environment
from plexsvc.rollout.preload import CPU_ENV, modules


def test_each_build_imports_its_own_workers_only() -> None:
    cpu, cuda = modules(has_cuda=False), modules(has_cuda=True)
    assert "vllm.v1.worker.cpu_worker" in cpu
    assert "vllm.v1.worker.gpu_worker" in cuda
    assert not [name for name in cuda if "cpu" in name]
    assert not [name for name in cpu if "gpu" in name]


def test_no_zygote_starts_cuda_before_it_forks() -> None:
    for module in ("plexsvc.rollout.preload", "plexsvc.worker.preload"):
        assert zygote_environment(module)["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_cuda_graphs_and_compiled_kernels_are_turned_off_on_cpus_only() -> None:
    assert "TORCHDYNAMO_DISABLE" not in zygote_environment("plexsvc.rollout.preload")
    assert CPU_ENV["TORCHDYNAMO_DISABLE"] == "1"
