"""What the train zygote may hold when it forks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import json, os, sys
import plexsvc.worker.preload
found = [name for name in ("grpc", "torch", "megatron.core", "transformers") if name in sys.modules]
print(json.dumps({"modules": found, "threads": len(os.listdir("/proc/self/task"))}))
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
