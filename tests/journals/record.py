"""Recorder of the journals here: runs the tests that make them and keeps what they left behind.

`python -m tests.journals.record` makes all of them anew; with names, only these. Record after a
change that is meant to change decisions, never to make a test pass.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from plexsvc.scheduler.driver import encoding
from plexsvc.sim.replay import verify
from plexsvc.store.reader import read_journal
from tests.rigs.live_cluster import KEPT_STATES

HERE = Path(__file__).parent
SYSTEM, UNIT = "tests/system", "tests/unit/scheduler"

RUNS = {
    "two_jobs": (f"{SYSTEM}/test_same_result.py", "cluster0"),
    "relocation": (f"{SYSTEM}/test_relocation.py", "inner0"),
    "instances_move": (f"{SYSTEM}/test_relocation.py", "test_instances_move_with_the_v0"),
    "operating": (f"{SYSTEM}/test_operating.py", "ops0"),
    "state_manager_killed": (f"{SYSTEM}/test_state_survives.py", "survive0"),
    "sampling": (f"{SYSTEM}/test_state_survives.py", "sampling0"),
    "drain_and_join": (f"{SYSTEM}/test_live_plan.py", "planned0"),
    "two_nodes": (f"{SYSTEM}/test_two_nodes.py", "two0"),
    "killed": (f"{SYSTEM}/test_kills.py", "mortal0"),
    **dict.fromkeys(
        ("new_node_dies_0", "new_node_dies_1", "new_node_dies_2", "old_node_dies"),
        (f"{SYSTEM}/test_durable_nodes.py", "durable0"),
    ),
    "copy_refused": (f"{UNIT}/orders/test_carry.py", "test_a_copy_refused_on_one_nod0"),
    "payload_nowhere": (f"{UNIT}/orders/test_carry.py", "test_a_payload_that_is_nowhere0"),
    "payloads_follow": (f"{UNIT}/orders/test_carry.py", "test_payloads_that_wait_during0"),
    "dead_rank": (f"{UNIT}/orders/test_run.py", "test_a_dead_rank_fails_its_job0"),
    "client_leaves": (f"{UNIT}/orders/test_run.py", "test_a_client_that_leaves_does0"),
    "publish_and_pull": (f"{UNIT}/orders/test_versions.py", "test_weights_flow_from_publish0"),
    "waits": (f"{UNIT}/api/test_operators.py", "test_who_waited_for_whom_is_in0"),
}
"""Name of each journal: the tests that leave it behind, and in which temporary folder."""


def run(tests: str, folder: Path, *, states: str) -> None:
    """Run tests; what they make stays below `folder`, state directories below `states`."""
    command = [sys.executable, "-m", "pytest", "-q", "--run-slow", "-p", "no:cacheprovider"]
    keeping = ["-o", "tmp_path_retention_policy=all", "--basetemp", str(folder)]
    environment = {**os.environ, KEPT_STATES: states}  # noqa: TID251 - hands ours on
    subprocess.run([*command, *keeping, tests], check=True, env=environment)


def keep(name: str, folder: Path) -> None:
    """Write the journal below a folder as the recording of that name, if it replays."""
    below = os.walk(folder, followlinks=True)
    database = next(
        Path(at, file) for at, _, files in below for file in files if file[-3:] == ".db"
    )
    lines = [
        encoding.JournalLine(idx=row.idx, kind=row.kind, body=row.body)
        for row in read_journal(str(database)).rows
    ]
    verdict = verify(encoding.read(lines))
    if not verdict.is_identical:
        raise SystemExit(f"{name}: not kept, its own replay differs: {verdict.difference}")
    text = "\n".join(json.dumps([line.idx, line.kind, line.body]) for line in lines)
    (HERE / f"{name}.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    sys.stdout.write(f"{name}: {verdict.events} events, {verdict.actions} actions\n")


def main(names: list[str]) -> None:
    """Record the journals of these names, or all."""
    wanted = {name: RUNS[name] for name in names or RUNS}
    os.chdir(HERE.parents[1])
    with (
        tempfile.TemporaryDirectory(prefix="px") as root,
        tempfile.TemporaryDirectory(prefix="px", dir="/var/tmp") as states,
    ):
        for number, tests in enumerate(sorted({tests for tests, _ in wanted.values()})):
            base = Path(root, str(number))
            run(tests, base, states=states)
            for name, (made_by, folder) in wanted.items():
                if made_by == tests:
                    keep(name, base / folder)


if __name__ == "__main__":
    main(sys.argv[1:])
