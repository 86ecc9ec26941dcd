"""Groups of ranks on the network: none for a rank alone, one address for those of several hosts."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = r"""
import os, re, sys, threading
import torch, torch.distributed as dist
from plexsvc.worker import process_group
from plexsvc.worker.config import parse

def ports():
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            pass
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in open(table).read().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.append(columns[1].rpartition(":")[0])
    return found

common = dict(wpg_id="w", incarnation=1, scheduler_epoch=1, tenant="t", job_id="j",
              deployment_id="d", role="actor", backend="noop", model="",
              collective_timeout_s=20)
mode = sys.argv[1]
if mode == "alone":
    process_group.join(parse({**common, "rank": 0, "world_size": 1}))
    groups = [dist.new_group([0]) for _ in range(3)]
    numbers, gathered = torch.arange(4.0), [torch.zeros(4)]
    dist.all_reduce(numbers, group=groups[0])
    dist.all_gather(gathered, numbers, group=groups[1])
    dist.barrier()
    assert numbers.tolist() == gathered[0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert ports() == [], ports()
else:
    place, rank = sys.argv[2], int(sys.argv[3])
    process_group.join(parse({**common, "rank": rank, "world_size": 2,
                              "rendezvous": f"tcp://{place}",
                              "listen": place.rpartition(":")[0] + ":0"}))
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 2.0
    assert set(ports()) <= {"0100007F", "0000000000000000FFFF00000100007F",
                            "00000000000000000000000001000000"}, ports()
    dist.barrier()
os._exit(0)
"""


def python(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_rank_alone_computes_its_collectives_and_opens_no_port() -> None:
    process = python("alone")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ranks_of_several_hosts_listen_on_their_own_address_only(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        place = f"{f'[{host}]' if ':' in host else host}:{free.getsockname()[1]}"
    ranks = [python("two", place, str(rank)) for rank in range(2)]
    for process in ranks:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
