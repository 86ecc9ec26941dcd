"""The client stands alone: nothing of plexsvc, no framework."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import sys, plexclient
heavy = {"plexsvc", "torch", "vllm", "megatron", "transformers", "tokenizers", "ray"}
print(sorted(heavy & set(sys.modules)))
"""


def test_importing_the_client_imports_no_service_and_no_framework() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env={"PYTHONPATH": "client"},
    )
    assert found.stdout.strip() == "[]"
