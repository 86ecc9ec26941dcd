"""Launchers of node agents: the protocol of all, and what they tell of a host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, Self

from plexsvc.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of the cluster as its launcher knows it."""

    node_id: NodeId
    address: str = ""
    """Where the node's agent serves; empty while it has none."""
    pid: int = 0
    """The agent's process, on that host."""
    problem: str = ""
    """Why it has no agent, and what to do."""
    request: str = ""
    """What asks for the certificate of its key pair, PEM; empty: it has one."""
    is_leaving: bool = False
    """The host has been told to go: nothing further is to be placed there."""
    is_gone: bool = False
    """The host is no more, and with it all that ran there."""


class Launcher(Protocol):
    """Keeps one agent running on each of its hosts.

    Use as an async context manager. An agent that dies has a successor at the same address, if its
    host is still there. When the launcher is left it ends the agents, and with them all that runs
    on the nodes; what an earlier launcher left is adopted.

    Attributes:
        leaves: whether the agents go on when it is left.
        hosts: the hosts by node, newest facts.
        changed: set whenever `hosts` is another.
    """

    leaves: bool
    hosts: dict[NodeId, Host]
    changed: asyncio.Event

    def admit(self, node_id: NodeId, certificate: str) -> None:
        """Have a host that asked for a certificate, PEM, have it."""

    async def __aenter__(self) -> Self:
        """Begin. What is on this machine alone serves when this returns."""

    async def __aexit__(self, *failure: object) -> None:
        """End the agents, unless this one leaves them."""
