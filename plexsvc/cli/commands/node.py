"""`plexctl node`: list, cordon, drain, uncordon and add nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from plexsvc.cli.options import (
    FAILED,
    Address,
    Commands,
    Json,
    StateDir,
    Token,
    calls_to,
    print_message,
    show,
)

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2
    from plexsvc.cluster.calls import RouterCalls

_POLL_S: Final = 0.5
_ADD_TIMEOUT_S: Final = 60.0

node_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List nodes; cordon, drain, uncordon and add them.",
    epilog="Example: plexctl node drain node-b --wait",
)
NodeId = Annotated[str, typer.Argument(help="The node's name.")]


@node_app.command("list", epilog="Example: plexctl node list")
def node_list(
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show every node: its state, its devices, who lives there, its host memory."""
    from plexclient.wire.v1 import service_pb2

    with calls_to(state_dir, address=address, token=token) as calls:
        reply = calls.call("ListNodes", service_pb2.ListNodesRequest(), service_pb2.ListNodesReply)
    if json:
        print_message(reply)
        return
    from plexsvc.show.nodes import nodes_view

    show(nodes_view(list(reply.nodes)))


@node_app.command("cordon", epilog="Example: plexctl node cordon node-b")
def node_cordon(
    node: NodeId,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Place nothing further on a node; what lives there stays (operators)."""
    with calls_to(state_dir, address=address, token=token) as calls:
        _print_node(_change(calls, node, "CORDON"), json=json)


@node_app.command("uncordon", epilog="Example: plexctl node uncordon node-b")
def node_uncordon(
    node: NodeId,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Let a cordoned or drained node take work again (operators)."""
    with calls_to(state_dir, address=address, token=token) as calls:
        _print_node(_change(calls, node, "UNCORDON"), json=json)


@node_app.command("drain", epilog="Example: plexctl node drain node-b --wait --timeout 600")
def node_drain(
    node: NodeId,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return once nothing lives there; Ctrl-C only stops this."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait at most; then exit 1, the drain goes on.")
    ] = 3600.0,
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Move everything off a node, and place nothing further there (operators).

    Training deployments move with their state while their jobs go on, rollout deployments to idle
    devices; what cannot move stays until its job ends, and is listed with the reason. Leave the
    node's agent running until the operations that waited meanwhile are answered: their payloads and
    the published versions they pull may still lie there.
    """
    with calls_to(state_dir, address=address, token=token) as calls:
        found = _change(calls, node, "DRAIN")
        if wait:
            found = _until_drained(calls, found, timeout_s=timeout)
        _print_node(found, json=json)
    if wait and found.state != "drained":
        typer.echo(f"{node} is {found.state}, not drained: {found.reason}", err=True)
        raise typer.Exit(FAILED)


@node_app.command("add", epilog="Example: plexctl node add 10.0.0.7:50061")
def node_add(
    agent: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where its agent listens.")],
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Take one more node agent in, until the service restarts (operators).

    Start the agent first: python -m plexsvc.node.agent --config FILE. A node that was lost joins
    again by itself when its agent answers at the same address.
    """
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.AddNodeRequest(agent=agent)
    with calls_to(state_dir, address=address, token=token) as calls:
        found = calls.call("AddNode", request, service_pb2.NodeView, timeout_s=_ADD_TIMEOUT_S)
    _print_node(found, json=json)


def _change(calls: RouterCalls, node: str, change: str) -> service_pb2.NodeView:
    from plexclient.wire.v1 import service_pb2

    request = service_pb2.ChangeNodeRequest(node_id=node, change=f"NODE_CHANGE_{change}")
    return calls.call("ChangeNode", request, service_pb2.NodeView)


def _until_drained(
    calls: RouterCalls, found: service_pb2.NodeView, *, timeout_s: float
) -> service_pb2.NodeView:
    """Ask until the node is drained, telling on stderr what it waits for whenever that changes."""
    import time

    from plexclient.wire.v1 import service_pb2

    deadline, told = time.monotonic() + timeout_s, ""
    while found.state == "draining" and time.monotonic() < deadline:
        if found.reason != told:
            told = found.reason
            typer.echo(f"{found.node_id}: {told}", err=True)
        time.sleep(_POLL_S)
        reply = calls.call("ListNodes", service_pb2.ListNodesRequest(), service_pb2.ListNodesReply)
        found = next((n for n in reply.nodes if n.node_id == found.node_id), found)
    return found


def _print_node(node: service_pb2.NodeView, *, json: bool) -> None:
    if json:
        print_message(node)
        return
    from plexsvc.show.nodes import nodes_view

    show(nodes_view([node]))
