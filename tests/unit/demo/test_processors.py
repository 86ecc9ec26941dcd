"""Processor time of process trees."""

from __future__ import annotations

import os
import subprocess
import sys

from plexsvc.demo.processors import cores, tree_seconds

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_time_of_an_ended_child_stays_in_its_parents_account() -> None:
    before_s = tree_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert tree_seconds(os.getpid()) - before_s >= 0.25


def test_a_process_that_is_gone_has_used_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_seconds(process.pid) == 0


def test_there_is_at_least_one_core() -> None:
    assert cores() >= 1
