"""vLLM engines of a service whose steps take a set time, as those of larger devices do.

They sleep after each of their steps until the time has passed: what a step made is sent before.
Goes to the processes of a benchmark's service as `sitecustomize`; no part of the product knows it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

PADDING: Final = '''
"""Engines whose steps take PLEX_BENCH_STEP_MS at least, in the processes of one benchmark."""
import importlib.abc, importlib.machinery, os, sys, time

STEP_S = float(os.environ["PLEX_BENCH_STEP_MS"]) / 1000
SAMPLE_S = float(os.environ["PLEX_BENCH_SAMPLE_MS"]) / 1000
SLOW = float(os.environ["PLEX_BENCH_SLOW"])
factor = 1.0


def padded(step):
    longest = 0.0

    def run(self):
        nonlocal longest
        began = time.monotonic()
        running = self.stats().running
        step(self)
        took = time.monotonic() - began
        if took > longest:
            longest = took
            print(f"longest step {took:.4f}", file=sys.stderr, flush=True)
        time.sleep(max(0.0, factor * (STEP_S + SAMPLE_S * running) - took))

    return run


def placed(main):
    def run(config, *args, **kwargs):
        global factor
        factor = SLOW if config.device_index % 2 else 1.0
        return main(config, *args, **kwargs)

    return run


def pad_engine(module):
    module.VllmEngine.step = padded(module.VllmEngine.step)


def know_device(module):
    module.run_vllm = placed(module.run_vllm)


CHANGES = {
    "plexsvc.rollout.engines.vllm.engine": pad_engine,
    "plexsvc.rollout.instance": know_device,
}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
'''


VARIABLES: Final = (
    "PYTHONPATH",
    "PLEX_BENCH_STEP_MS",
    "PLEX_BENCH_SAMPLE_MS",
    "PLEX_BENCH_SLOW",
)
"""What `install` sets in this process's environment."""


def install(home: Path, *, step_ms: float, sample_ms: float = 0.0, slow: float = 1.0) -> None:
    """Have services that are started from now on take so long for a step; writes to `home`.

    `step_ms`, and `sample_ms` for each sample that runs; engines on devices of odd index take
    `slow` times as long.
    """
    (home / "sitecustomize.py").write_text(PADDING)
    path = [str(home), *filter(None, [os.environ.get("PYTHONPATH")])]  # noqa: TID251 - of its processes
    times = {
        "PLEX_BENCH_STEP_MS": str(step_ms),
        "PLEX_BENCH_SAMPLE_MS": str(sample_ms),
        "PLEX_BENCH_SLOW": str(slow),
    }
    os.environ |= {"PYTHONPATH": os.pathsep.join(path), **times}  # noqa: TID251 - as above


def longest_s(state_dir: Path) -> float:
    """Return the longest step of a service's engines before it was padded."""
    logs = "".join(one.read_text() for one in state_dir.glob("nodes/*/logs/*.log"))
    return max(float(took) for took in re.findall(r"longest step ([\d.]+)", logs))
