"""What the train zygote may hold when it forks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from plexsvc.worker.preload import ZYGOTE_ENV

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import json, os, sys
import plexsvc.worker.preload
found = [name for name in ("grpc", "torch", "megatron.core", "transformers") if name in sys.modules]
print(json.dumps({"modules": found, "threads": len(os.listdir("/proc/self/task"))}))
"""


def test_the_preloaded_process_has_one_thread_and_no_grpc() -> None:
    env = [f"{name}={value}" for name, value in ZYGOTE_ENV.items()]
    done = subprocess.run(
        ["env", *env, sys.executable, "-W", "ignore", "-c", PROGRAM],
        check=True,
        capture_output=True,
        timeout=60,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"modules": ["torch", "megatron.core", "transformers"], "threads": 1}
