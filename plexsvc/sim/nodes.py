"""Nodes of a cluster file as a client of the core: they join, fail and return by seed.

A node of the file is a node of the core with one device, which stands for all of its devices and
holds the state of one deployment. Rollouts of jobs without `rollout_nodes` run on devices beside
the cluster. The times of losses depend on the seed alone, so every policy meets the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import numpy as np

from plexsvc.ids import NodeId
from plexsvc.scheduler.core.events import (
    Event,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeUncordoned,
)
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.vocabulary import DeviceFacts
from plexsvc.sim.clients import Alarm, Client, Post, Posts
from plexsvc.sim.cluster import NodeAction, NodeEvent, SimCluster, node_name

TRAIN_KIND: Final = "train"
ROLLOUT_KIND: Final = "rollout"
ROLLOUT_HOST: Final = NodeId("rollouts")
STATE_BYTES: Final = 1 << 30
"""What the state of any deployment takes on a device, which holds just that."""
HOST_BYTES: Final = 10**15
"""Host memory of a node: without bound."""


@dataclass(slots=True, kw_only=True)
class Nodes(Client):
    """The nodes of one run."""

    is_background: ClassVar[bool] = True

    cluster: SimCluster
    seed: int
    num_rollouts: int
    """Devices beside the cluster."""
    has_hope: Callable[[], bool]
    """Whether a job has its devices, or is still to come: without one, nodes need not be lost."""

    _up: set[NodeId] = field(default_factory=set)
    _lost: set[NodeId] = field(default_factory=set)
    _acts_left: int = 0
    _dice: np.random.Generator = field(init=False)
    _planned: list[tuple[int, Callable[[int], Posts]]] = field(default_factory=list)
    """When each alarm rings and what for, by its tag."""

    def __post_init__(self) -> None:
        self._dice = np.random.default_rng([self.seed, 77])

    @property
    def is_done(self) -> bool:
        """Nobody waits for nodes to be lost."""
        return True

    @property
    def may_improve(self) -> bool:
        """Whether a node is being repaired, or an operator will still act."""
        return bool(self._lost) or self._acts_left > 0

    def begin(self) -> Posts:
        """Return the first nodes, the operator's acts, and an alarm for the first loss."""
        posts: list[Post | Alarm] = [
            Post(0, self._joined(NodeId(node_name(at)))) for at in range(self.cluster.nodes)
        ]
        if self.num_rollouts:
            posts.append(
                Post(0, _of_kind(ROLLOUT_HOST, kind=ROLLOUT_KIND, count=self.num_rollouts))
            )
        for act in self.cluster.events:
            acts = [Post(round(act.at_s * SECOND_US), event, 1) for event in self._events(act)]
            self._acts_left += len(acts)
            posts.extend(acts)
        if self.cluster.faults.node_mtbf_h:
            posts.append(self._next_loss(0))
        return posts

    def happened(self, event: Event, *, tag: int) -> Posts:
        """Note which nodes are there; `tag` 1 marks an operator's act."""
        self._acts_left -= tag
        if isinstance(event, NodeJoined):
            self._up.add(event.node_id)
            self._lost.discard(event.node_id)
        elif isinstance(event, NodeLost):
            self._up.remove(event.node_id)
            self._lost.add(event.node_id)
        return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:
        """Lose a node, or bring one back.

        Whatever follows is counted from the time that was planned: events of jobs that happen in
        the same instant would shift the time of all later losses.
        """
        at_us, what = self._planned[tag]
        return what(at_us)

    def _next_loss(self, now_us: int) -> Alarm:
        mean_us = self.cluster.faults.node_mtbf_h * 3600 * SECOND_US / self.cluster.nodes
        after_us = round(self._dice.exponential(mean_us))
        victim = NodeId(node_name(int(self._dice.integers(self.cluster.nodes))))
        return self._alarm(now_us + after_us, partial(self._lose, victim))

    def _alarm(self, at_us: int, what: Callable[[int], Posts]) -> Alarm:
        self._planned.append((at_us, what))
        return Alarm(at_us, len(self._planned) - 1)

    def _lose(self, node_id: NodeId, now_us: int) -> Posts:
        if not self.has_hope() and not self.may_improve:
            return ()
        posts: list[Post | Alarm] = [self._next_loss(now_us)]
        if node_id in self._up:
            back_us = now_us + round(self.cluster.faults.repair_s * SECOND_US)
            posts.append(Post(now_us, NodeLost(node_id=node_id, reason="simulated loss")))
            posts.append(self._alarm(back_us, partial(self._return, node_id)))
        return posts

    def _return(self, node_id: NodeId, now_us: int) -> Posts:
        """Bring a repaired node back, unless an operator joined it before."""
        return () if node_id in self._up else (Post(now_us, self._joined(node_id)),)

    def _joined(self, node_id: NodeId) -> NodeJoined:
        devices = self.cluster.group_of(node_id).devices
        return _of_kind(node_id, kind=kind_of(devices, cluster=self.cluster), count=1)

    def _events(self, act: NodeEvent) -> tuple[Event, ...]:
        node_id = NodeId(act.node)
        match act.action:
            case NodeAction.CORDON:
                return (NodeCordoned(node_id=node_id),)
            case NodeAction.DRAIN:
                return (NodeCordoned(node_id=node_id, is_drained=True),)
            case NodeAction.UNCORDON:
                return (NodeUncordoned(node_id=node_id),)
            case NodeAction.JOIN:
                return (self._joined(node_id), NodeUncordoned(node_id=node_id))


def kind_of(devices: int, *, cluster: SimCluster) -> str:
    """Return the core's name for nodes of a size: jobs ask for nodes of one size, all alike."""
    return TRAIN_KIND if devices == cluster.devices_per_node else f"{TRAIN_KIND}-{devices}"


def _of_kind(node_id: NodeId, *, kind: str, count: int) -> NodeJoined:
    devices = tuple(
        DeviceFacts(index=at, kind=kind, bytes_total=STATE_BYTES) for at in range(count)
    )
    return NodeJoined(node_id=node_id, devices=devices, host_bytes=HOST_BYTES)
