"""Report to an autoscaler: devices that are missing, and nodes that may be given back.

The command of the configuration gets one JSON object on its standard input whenever that is
another. Only nodes that are drained may be given back: nothing lives there, and nothing comes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.log import Log

log = Log(__name__)

LOOK_US: Final = 5_000_000
TIMEOUT_S: Final = 60.0
"""How long the command may take."""


def told(pack: pb.PackReply, nodes: pb.ListNodesReply) -> dict[str, Any]:
    """Return what an autoscaler is told.

    >>> demand = pb.KindDemand(kind="train", idle=1, wanted={"devices": 4}, missing=3)
    >>> node = pb.NodeView(node_id="b", state="drained")
    >>> told(pb.PackReply(demand=[demand]), pb.ListNodesReply(nodes=[node]))
    {'kinds': {'train': {'missing': 3, 'idle': 1, 'wanted': {'devices': 4}}}, 'drained': ['b']}
    """
    return {
        "kinds": {
            one.kind: {"missing": one.missing, "idle": one.idle, "wanted": dict(one.wanted)}
            for one in pack.demand
        },
        "drained": sorted(node.node_id for node in nodes.nodes if node.state == "drained"),
    }


async def follow(
    command: Sequence[str], look: Callable[[], Awaitable[dict[str, Any]]], *, clock: Clock
) -> None:
    """Call the command with what `look` returns whenever that is another, until cancelled.

    One that fails is called again.
    """
    # What an autoscaler takes for granted: nothing is missing, nothing may go.
    last: dict[str, Any] = {"kinds": {}, "drained": []}
    while True:
        try:
            found = await look()
            if found != last and await asyncio.to_thread(_call, command, found):
                last = found
        except PlexError as error:
            log.warning("nothing to tell the autoscaler", error=error)
        await clock.sleep(LOOK_US)


def _call(command: Sequence[str], found: dict[str, Any]) -> bool:
    """Return whether the command took it."""
    text = json.dumps(found)
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("autoscaler not told; trying again", told=text, error=error)
        return False
    if done.returncode != 0:
        log.warning("autoscaler failed; trying again", told=text, said=done.stderr[-500:])
    else:
        log.info("autoscaler told", told=text)
    return done.returncode == 0
