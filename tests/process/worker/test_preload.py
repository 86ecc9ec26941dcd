"""What the train zygote may hold when it forks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import collections, json, os, sys
read = collections.Counter()
sys.addaudithook(lambda event, args: event == "open" and read.update([str(args[0])]))
import plexsvc.worker.preload
import transformers.models
models = os.path.dirname(transformers.models.__file__)
twice = [path for path, count in read.items() if path.startswith(models) and count > 1]
is_one = transformers.models.Qwen3Config is transformers.Qwen3Config
found = [name for name in ("grpc", "torch", "megatron.core", "transformers") if name in sys.modules]
threads = len(os.listdir("/proc/self/task"))
print(json.dumps({"modules": found, "threads": threads, "twice": twice, "is_one": is_one}))
"""


def preloaded() -> dict[str, Any]:
    done = subprocess.run(
        [
            "env",
            "OMP_NUM_THREADS=1",
            "OPENBLAS_NUM_THREADS=1",
            "MKL_NUM_THREADS=1",
            sys.executable,
            "-W",
            "ignore",
            "-c",
            PROGRAM,
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_preloaded_process_has_the_frameworks_and_one_thread_and_no_grpc() -> None:
    found = preloaded()
    assert {"torch", "megatron.core", "transformers"} <= set(found["modules"])
    assert "grpc" not in found["modules"]
    assert found["threads"] == 1
    assert found["twice"] == [], "sources of models are read for their names once"
    assert found["is_one"], "both packages export them"
