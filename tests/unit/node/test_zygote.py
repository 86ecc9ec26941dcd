"""What a zygote knows without importing its image, and the lines it exchanges with the agent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plexsvc.node import messages
from plexsvc.node.zygote import zygote_environment
from plexsvc.tether import ORPHANED


@pytest.mark.parametrize("module", ["plexsvc.rollout.preload", "tests.fakes.fake_preload"])
def test_an_images_environment_is_read_without_importing_it(module: str) -> None:
    sys.modules.pop(module, None)
    assert zygote_environment(module)
    assert module not in sys.modules


def test_a_module_without_an_environment_has_an_empty_one() -> None:
    assert zygote_environment("plexsvc.tether") == {}
    with pytest.raises(ModuleNotFoundError, match=r"plexsvc\.nowhere"):
        zygote_environment("plexsvc.nowhere")


@pytest.mark.parametrize(
    "report",
    [
        messages.Preloaded(threads=1, native_threads=1, took_us=5),
        messages.Forked(token=1, pid=2),
        messages.Refused(token=1, reason="line\nbreak"),
    ],
)
def test_a_report_is_one_line_and_reads_back(report: messages.Report) -> None:
    line = messages.encode_report(report)
    assert line.count(b"\n") == 1
    assert messages.decode_report(line) == report


def test_an_order_is_one_line_and_reads_back() -> None:
    order = messages.ForkOrder(
        token=3,
        name="a/0",
        entrypoint="m:f",
        config={"x": [1]},
        env={"CUDA_VISIBLE_DEVICES": "1"},
        log_path="/l",
        ready_path="/r",
    )
    assert messages.decode_order(messages.encode_order(order)) == order


def test_importing_the_zygote_imports_no_grpc() -> None:
    code = "import sys, plexsvc.node.zygote; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_process_whose_parent_is_gone_leaves_at_once() -> None:
    command = [sys.executable, "-m", "plexsvc.tether", "1", "sleep", "600"]
    assert subprocess.run(command, check=False, timeout=120).returncode == ORPHANED
