"""`plexctl up` and `plexctl down`: start a cluster on this machine and serve it; stop it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from plexsvc import config as configuration
from plexsvc import log as logging
from plexsvc.clock import SystemClock
from plexsvc.cluster.config import DEFAULT_NODES, DEFAULT_TENANT, ClusterConfig
from plexsvc.cluster.embedded import EmbeddedCluster
from plexsvc.cluster.nodes import plan
from plexsvc.cluster.places import (
    STATE_DIR_VARIABLE,
    Card,
    holder,
    make_state_dir,
    read_card,
    remove_card,
    runs_already,
)
from plexsvc.errors import bad_request, unavailable
from plexsvc.node import found
from plexsvc.node.logs import keep_bounded, tail
from plexsvc.router.config import RouterConfig
from plexsvc.rpc import loops
from plexsvc.rpc.errors import first_failure
from plexsvc.statelink.cuda import gpus

ALONE: Final = ClusterConfig(router=RouterConfig(http_listen="127.0.0.1:0"))
"""The cluster of who gives no file: small, and with its page."""
UP_TIMEOUT_S: Final = 180.0
DOWN_TIMEOUT_S: Final = 60.0
MAX_LOG_BYTES: Final = 64 << 20
"""Size at which `up.log` is emptied, as the nodes' logs are (`max_log_bytes`)."""
KEEP: Final = signal.SIGUSR1
"""Ends a service and leaves what runs on its nodes."""
PROGRAMS: Final = frozenset({"plexctl", "plexsvc.cli.main"})
_POLL_S: Final = 0.1


def read_config(
    path: Path | None, *, state_dir: Path | None, roots: Sequence[Path] = ()
) -> ClusterConfig:
    """Return the configuration in `path` (or the default one), in `state_dir` if given.

    `roots` are added to those of the tenant on the cluster's card.

    Raises:
        PlexError: `bad_request` for a file that does not fit, or a root that is no directory.
    """
    config = ALONE if path is None else configuration.load(path, ClusterConfig)
    if config.nodes is DEFAULT_NODES and config.launcher == "local":
        config = replace(config, nodes=plan(gpus()))
    missing = next((root for root in roots if not root.is_dir()), None)
    if missing is not None:
        raise bad_request(f"--root {missing}: there is no such directory")
    tenant = next(iter(config.tokens.values()), DEFAULT_TENANT)
    own = (*config.router.roots.get(tenant, ()), *(root.absolute() for root in roots))
    router = replace(config.router, roots=config.router.roots | {tenant: own})
    return replace(config, router=router, state_dir=state_dir or config.state_dir)


def serve(config: ClusterConfig, *, waits: bool, on_up: Callable[[Card], None]) -> None:
    """Serve in this process until TERM or INT, or until USR1, which leaves what runs on the nodes.

    With `waits` it serves once nobody else does.

    Raises:
        PlexError: when the cluster does not come up, or a part of it fails for good.
    """
    logging.setup()
    try:
        loops.run(_serve(config, waits=waits, on_up=on_up))
    except BaseExceptionGroup as group:
        raise first_failure(group) from group


async def _serve(config: ClusterConfig, *, waits: bool, on_up: Callable[[Card], None]) -> None:
    leave, cluster = asyncio.Event(), EmbeddedCluster(config, waits=waits)

    def leave_what_runs() -> None:
        cluster.keeps = True
        leave.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    loop.add_signal_handler(KEEP, leave_what_runs)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(_until_cancelled(cluster, on_up=on_up))
        leaving = tasks.create_task(leave.wait())
        bounded = keep_bounded(config.state_dir, max_bytes=MAX_LOG_BYTES, clock=SystemClock())
        cutting = tasks.create_task(bounded)
        await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, leaving, cutting):
            task.cancel()


async def _until_cancelled(cluster: EmbeddedCluster, *, on_up: Callable[[Card], None]) -> None:
    async with cluster:
        loops.keep_what_is_there()
        on_up(cluster.card)
        await asyncio.Event().wait()


def detach(config: ClusterConfig, *, config_path: Path | None, roots: Sequence[Path] = ()) -> Card:
    """Start the cluster as a process of its own; return its card once it serves.

    Raises:
        PlexError: `unavailable` when one runs there already, or with its log's tail when it does
            not come up in time.
    """
    make_state_dir(config.state_dir)
    if holder(config.state_dir) is not None:
        raise runs_already(config.state_dir)
    log_path = config.state_dir / "up.log"
    argv = [sys.executable, "-m", "plexsvc.cli.main", "up", "--state-dir", str(config.state_dir)]
    if config_path is not None:
        argv += ["--config", str(config_path)]
    for root in roots:
        argv += ["--root", str(root)]
    with log_path.open("ab") as log_file:
        begins = log_file.tell()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    deadline = time.monotonic() + UP_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        card = read_card(config.state_dir)
        if card is not None and card.pid == process.pid:
            process.returncode = 0  # it runs on without this process: nobody is to wait for it
            return card
        time.sleep(_POLL_S)
    process.kill()
    raise unavailable(
        f"the cluster did not come up; its log {log_path} ends:\n{tail(log_path, begins=begins)}"
    )


def stop(state_dir: Path, *, keep: bool = False) -> int | None:
    """Stop the cluster that runs in `state_dir`; return its process, or None when none runs.

    Node agents end, too: those that a killed cluster left, or one that had not taken them over yet.
    With `keep` the service alone ends.

    Raises:
        PlexError: `unavailable` when it does not end in time.
    """
    pid = holder(state_dir) or _starting(state_dir)
    if pid is not None:
        _end(pid, state_dir, number=KEEP if keep else signal.SIGTERM)
    if not keep and holder(state_dir) is None:  # else a standby serves by now
        for agent in found.find_all(state_dir):
            found.end(agent)
        remove_card(state_dir)
    return pid


def _starting(state_dir: Path) -> int | None:
    """Return a process of `plexctl up` that does not hold its state directory yet."""
    found, wanted = dict[bool, int](), state_dir.resolve()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, KeyError):
            program, called, options = (place / "cmdline").read_text().partition("\0up\0")
            words = options.split("\0")[:-1]
            is_up = called and program.replace("\0", "/").rpartition("/")[2] in PROGRAMS
            if is_up and "--standby" not in words and _state_dir_of(place, words) == wanted:
                found["--detach" in words] = int(place.name)
    return found.get(False, found.get(True))  # what another one detaches, rather than that


def _state_dir_of(process: Path, words: Sequence[str]) -> Path:
    """Return the state directory of a `plexctl up` in /proc that was given these options."""
    pairs = [pair for word in words for pair in word.split("=", 1)]
    given = dict(pairwise(pairs))
    there = (process / "environ").read_text().split("\0")
    env = dict(entry.split("=", 1) for entry in there if "=" in entry)
    where = (process / "cwd").resolve()
    named = given.get("--state-dir") or env.get(STATE_DIR_VARIABLE)
    if not named and (file := given.get("--config")) is not None:
        named = tomllib.loads((where / file).read_text()).get("state_dir")
    return (where / (named or Path(env["HOME"], ".local/state/plexsvc"))).resolve()


def _end(pid: int, state_dir: Path, *, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it ended by itself meanwhile
        # By a descriptor: by the time of the signal the number may be another process's.
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, number)
            ended, _, _ = select.select([process], [], [], DOWN_TIMEOUT_S)
        finally:
            os.close(process)
        if not ended:
            raise unavailable(
                f"the cluster in {state_dir} (pid {pid}) did not end within {DOWN_TIMEOUT_S:g} s "
                f"of {number.name[3:]}; see {state_dir / 'up.log'}, or end it with "
                f"`kill -9 {pid}`"
            )
