"""A cluster with spot devices, and generates whose instances are killed at drawn tokens."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import plexclient as plex
from plexclient.wire.v1 import node_pb2, node_pb2_grpc
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.live_cluster import MIB, ROLLOUT, TRAIN, LiveCluster
from tests.rigs.waiting import wait_until

SPOT: Final = f'{{ kind = "spot", bytes_total = {1024 * MIB} }}'
NODES: Final = {"node-a": [TRAIN, ROLLOUT, ROLLOUT], "spot-a": [SPOT, SPOT]}
PROMPTS: Final = [[3, 4, 12, 5, 16], [7, 8, 9], [4, 4, 4, 4], [12, 3]]


def instances(cluster: LiveCluster) -> list[dict[str, str]]:
    """Return what `plexctl instance list` says."""
    found: list[dict[str, str]] = json.loads(_plexctl(cluster, "list", "--json"))["instances"]
    return found


def change_instance(cluster: LiveCluster, verb: str, device: str) -> None:
    """Do what `plexctl instance VERB DEVICE` does."""
    _plexctl(cluster, verb, device)


def _plexctl(cluster: LiveCluster, *args: str) -> str:
    command = [sys.executable, "-m", "plexsvc.cli.main", "instance", *args]
    options = ["--address", cluster.address, "--token", cluster.token]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    return done.stdout


def wait_until_serving(cluster: LiveCluster, deployment: plex.Rollout, count: int) -> None:
    """Return when so many spot instances of a deployment serve, or more."""

    def are_serving() -> bool:
        found = [
            one
            for one in instances(cluster)
            if (one["kind"], one.get("phase")) == ("spot", "serving")
            and one["deployment_id"] == deployment.deployment_id
        ]
        return len(found) >= count

    wait_until(are_serving, what=f"{count} spot instances serve")


def spot_processes(cluster: LiveCluster, node_id: str = "spot-a") -> list[int]:
    """Return the pids of spot instances."""
    (node,) = [one for one in cluster.status().nodes if one.node_id == node_id]
    with open_blocking_channel(node.address.agent, cluster.keys) as channel:
        reply = node_pb2_grpc.NodeStub(channel).Describe(
            node_pb2.NodeDescribeRequest(), timeout=120
        )
    spot = [proc for proc in reply.procs if "/spot-" in proc.wpg_id]
    return [proc.pid for proc in spot if proc.pid]  # one that is being forked has none


def tokens(samples: Sequence[plex.Sample]) -> list[list[int]]:
    """Return the tokens of each sample, by prompt and number."""
    ordered = sorted(samples, key=lambda one: (one.prompt_index, one.sample_index))
    return [one.tokens for one in ordered]


@dataclass(slots=True)
class Killed:
    """A generate whose spot instances were killed while it ran."""

    samples: list[plex.Sample] = field(default_factory=list)
    seen: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Tokens as they came, by prompt and sample."""
    kills: int = 0
    repeated: int = 0
    """Deltas that did not go on where their sample stood."""


def generate_under_kills(
    cluster: LiveCluster,
    rollout: plex.Rollout,
    options: plex.SamplingOptions,
    *,
    kills: int,
    dice: random.Random,
) -> Killed:
    """Run a generate of `PROMPTS`; kill -9 spot instances at `kills` drawn tokens of it."""
    found, count = Killed(), 0
    total = len(PROMPTS) * options["n"] * options["max_tokens"]
    at = sorted(dice.sample(range(total), k=kills))
    for delta in rollout.generate.deltas(PROMPTS, **options):
        known = found.seen.setdefault((delta.prompt_index, delta.sample_index), [])
        found.repeated += delta.position != len(known)
        known += delta.tokens
        count += len(delta.tokens)
        while at and count >= at[0]:
            at.pop(0)
            if processes := spot_processes(cluster):
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(dice.choice(processes), signal.SIGKILL)
                    found.kills += 1
        if delta.sample is not None:
            found.samples.append(delta.sample)
    return found
