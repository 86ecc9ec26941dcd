"""`plexctl node`: list, cordon, drain, uncordon and add nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from plexsvc.cli.app import FAILED, At, Commands, command

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2

_POLL_S: Final = 0.5
_ADD_TIMEOUT_S: Final = 60.0

node_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List nodes; cordon, drain, uncordon and add them.",
    epilog="Example: plexctl node drain node-b --wait",
)
NodeId = Annotated[str, typer.Argument(help="The node's name.")]


@command(node_app, "list", example="plexctl node list")
def node_list(at: At) -> None:
    """Show every node: its state, its devices, who lives there, its host memory."""
    from plexsvc.show.nodes import nodes_view

    reply = at.ask("ListNodes")
    at.show(reply, nodes_view(list(reply.nodes)))


@command(node_app, "cordon", example="plexctl node cordon node-b")
def node_cordon(at: At, node: NodeId) -> None:
    """Place nothing further on a node; what lives there stays (operators)."""
    _show_node(at, _change(at, node, "CORDON"))


@command(node_app, "uncordon", example="plexctl node uncordon node-b")
def node_uncordon(at: At, node: NodeId) -> None:
    """Let a cordoned or drained node take work again (operators)."""
    _show_node(at, _change(at, node, "UNCORDON"))


@command(node_app, "drain", example="plexctl node drain node-b --wait --timeout 600")
def node_drain(
    at: At,
    node: NodeId,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return once nothing lives there; Ctrl-C only stops this."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait at most; then exit 1, the drain goes on.")
    ] = 3600.0,
) -> None:
    """Move everything off a node, and place nothing further there (operators).

    Training deployments move with their state while their jobs go on, rollout deployments to idle
    devices; what cannot move stays until its job ends, and is listed with the reason. Leave the
    node's agent running until the operations that waited meanwhile are answered: their payloads and
    the published versions they pull may still lie there.
    """
    found = _change(at, node, "DRAIN")
    if wait:
        found = _until_drained(at, found, timeout_s=timeout)
    _show_node(at, found)
    if wait and found.state != "drained":
        typer.echo(f"{node} is {found.state}, not drained: {found.reason}", err=True)
        raise typer.Exit(FAILED)


@command(node_app, "add", example="plexctl node add 10.0.0.7:50061")
def node_add(
    at: At,
    agent: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="Where its agent listens: HOST:PORT or unix:/PATH."),
    ],
) -> None:
    """Take one more node agent in, also when the service starts again (operators).

    Start the agent first: python -m plexsvc.node.agent --config FILE. A node that was lost joins
    again by itself when its agent answers at the same address.
    """
    found = at.ask("AddNode", agent=agent, timeout_s=_ADD_TIMEOUT_S)
    _show_node(at, found)


def _change(at: At, node: str, change: str) -> Any:
    return at.ask("ChangeNode", node_id=node, change=f"NODE_CHANGE_{change}")


def _until_drained(
    at: At, found: service_pb2.NodeView, *, timeout_s: float
) -> service_pb2.NodeView:
    """Ask until the node is drained, telling on stderr what it waits for whenever that changes."""
    import time

    deadline, told = time.monotonic() + timeout_s, ""
    while found.state == "draining" and time.monotonic() < deadline:
        if found.reason != told:
            told = found.reason
            typer.echo(f"{found.node_id}: {told}", err=True)
        time.sleep(_POLL_S)
        nodes = at.ask("ListNodes").nodes
        found = next((n for n in nodes if n.node_id == found.node_id), found)
    return found


def _show_node(at: At, node: service_pb2.NodeView) -> None:
    from plexsvc.show.nodes import nodes_view

    at.show(node, nodes_view([node]))
