"""Examination of every node of a cluster: whether it fits the service, and what to do.

The service's host asks each agent, with the cluster's keys, and compares with what it has itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from plexclient.wire.v1 import node_pb2, node_pb2_grpc, service_pb2
from plexsvc.cluster.calls import router
from plexsvc.cluster.doctor import GIB, Finding, Grade
from plexsvc.cluster.places import Card, keys_file
from plexsvc.node.examination import examine_root
from plexsvc.rpc.addresses import host_of
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys, read_keys

TIMEOUT_S: Final = 30.0
MAX_SKEW_US: Final = 1_000_000
"""Clocks that differ more spoil logs, traces and the times of certificates."""
MAX_REACHED: Final = 256
"""Ports that each node tries."""
_THREADS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """What an agent answered, and when."""

    found: node_pb2.Examination
    asked_us: int
    answered_us: int


def examine_nodes(state_dir: Path, card: Card) -> Iterator[Finding]:
    """Yield what is found on each node, and in what it differs from this host, the service's.

    Raises:
        PlexError: no cluster answers, or its keys cannot be read.
    """
    with router(card) as stub:
        nodes = list(stub.ListNodes(service_pb2.ListNodesRequest()).nodes)
    keys = read_keys(keys_file(state_dir))
    own = {root: examine_root(Path(root)) for root in card.roots}
    ask = partial(_ask, keys=keys, roots=list(own), nodes=nodes)
    with ThreadPoolExecutor(_THREADS) as threads:
        for node, answer in zip(nodes, threads.map(ask, nodes), strict=True):
            if isinstance(answer, str):
                yield _failed(
                    node.node_id,
                    f"does not answer: {node.reason or answer}",
                    "look at its agent's log; `plexctl node list` says how long it is gone",
                )
            else:
                yield from judge(node.node_id, answer, versions=card.versions, own=own)


def _ask(
    node: service_pb2.NodeView,
    *,
    keys: ClusterKeys,
    roots: Sequence[str],
    nodes: Sequence[service_pb2.NodeView],
) -> AgentReply | str:
    """Return what a node's agent says, or why it says nothing."""
    host = host_of(node.address.agent)
    ports = (port for other in nodes for port in (other.address.agent, other.address.state_manager))
    others = [port for port in ports if host_of(port) not in {"", host}][:MAX_REACHED]
    request = node_pb2.ExamineRequest(roots=roots, reaches=others)
    asked_us = time.time_ns() // 1000
    try:
        with open_blocking_channel(node.address.agent, keys) as channel:
            found = node_pb2_grpc.NodeStub(channel).Examine(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error_from(error).message
    return AgentReply(found=found, asked_us=asked_us, answered_us=time.time_ns() // 1000)


def judge(
    node_id: str,
    answer: AgentReply,
    *,
    versions: Mapping[str, str],
    own: Mapping[str, node_pb2.RootFound],
) -> Iterator[Finding]:
    """Yield what is wrong with a node, or that nothing is."""
    found = answer.found
    # Its clock was read at some time between: only what lies outside of that is skew.
    early_us, late_us = answer.asked_us - found.wall_us, found.wall_us - answer.answered_us
    skew_us = max(early_us, late_us, 0)
    wrong = [
        *_versions(node_id, found.versions, versions),
        *_clock(node_id, skew_us),
        *(
            _failed(node_id, f"does not reach {port}", "open that port between the two hosts")
            for port in found.unreached
        ),
        *(finding for root in found.roots for finding in _root(node_id, root, own=own[root.path])),
        *_disks(node_id, found.free_bytes),
    ]
    yield from wrong or [
        Finding(
            name=node_id,
            grade=Grade.OK,
            found=f"{', '.join(f'{n} {v}' for n, v in sorted(found.versions.items()))}; "
            f"{sum(len(root.models) for root in found.roots)} models as here; "
            f"{min(found.free_bytes.values(), default=0) / GIB:.1f} GiB of disk free",
        )
    ]


def _versions(
    node_id: str, found: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[Finding]:
    for name, version in sorted(wanted.items()):
        if found.get(name, "") != version:
            has = f"has {name} {found.get(name) or 'not at all'}, the service {version or 'none'}"
            yield _failed(node_id, has, "install the service's there, and start the agent again")


def _clock(node_id: str, skew_us: int) -> Iterator[Finding]:
    if skew_us > MAX_SKEW_US:
        yield Finding(
            name=node_id,
            grade=Grade.LIMITED,
            found=f"its clock is {skew_us / 1e6:.1f} s from the service's",
            todo="run a time service on both hosts (chrony, systemd-timesyncd)",
        )


def _root(node_id: str, found: node_pb2.RootFound, *, own: node_pb2.RootFound) -> Iterator[Finding]:
    if found.problem:
        yield _failed(
            node_id,
            f"cannot read {found.path}: {found.problem}",
            "mount the service's directory of models there, for the agent's user",
        )
        return
    names = sorted({*found.models, *own.models})
    differing = [name for name in names if found.models.get(name) != own.models.get(name)]
    if differing:
        yield _failed(
            node_id,
            f"has another {differing[0]} in {found.path} than the service"
            + (f", and {len(differing) - 1} more" if differing[1:] else ""),
            "mount the same directory on both, or copy it again",
        )


def _disks(node_id: str, free_bytes: Mapping[str, int]) -> Iterator[Finding]:
    for place, free in sorted(free_bytes.items()):
        if free < 10 * GIB:
            yield Finding(
                name=node_id,
                grade=Grade.FAILED if free < GIB else Grade.LIMITED,
                found=f"{free / GIB:.1f} GiB free below {place}",
                todo="free some: logs and parked state go there",
            )


def _failed(node_id: str, found: str, todo: str) -> Finding:
    return Finding(name=node_id, grade=Grade.FAILED, found=found, todo=todo)
