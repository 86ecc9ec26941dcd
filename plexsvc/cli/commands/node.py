"""`plexctl node`: list, cordon, drain, uncordon, add, join and shut out nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from plexsvc.cli.app import FAILED, At, Commands, Json, command, duration_us, print_json

if TYPE_CHECKING:
    from plexclient.wire.v1 import service_pb2

_POLL_S: Final = 0.5
_ADD_TIMEOUT_S: Final = 60.0

node_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="List nodes; cordon, drain and uncordon them; join as one, and shut one out.",
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

    On another host, `plexctl node join` does this. A node that was lost joins again by itself when
    its agent answers at the same address.
    """
    found = at.ask("AddNode", agent=agent, timeout_s=_ADD_TIMEOUT_S)
    _show_node(at, found)


@command(node_app, "shut-out", example="plexctl node shut-out node-b")
def node_shut_out(at: At, node: NodeId) -> None:
    """Refuse a node that joined, everywhere and from now on (operators).

    What runs there is lost with its lease. It comes back with a new token for its name alone.
    """
    reply = at.ask("ShutOutNode", node_id=node)
    at.show(reply, f"{node} is shut out: certificates {', '.join(reply.serials)}")


@node_app.command("join", epilog="Example: PLEX_TOKEN=tok-... plexctl node join 10.0.0.1:50051")
def node_join(
    address: Annotated[str, typer.Argument(help="The cluster's router, HOST:PORT.")],
    token: Annotated[
        str, typer.Option(envvar="PLEX_TOKEN", help="From `node token create`; not needed again.")
    ] = "",
    name: Annotated[str, typer.Option(help="The node's name; by default the host's.")] = "",
    listen: Annotated[
        str, typer.Option(help="HOST or HOST:PORT, as others reach this host; by default found.")
    ] = "",
    pool: Annotated[
        Path | None,
        typer.Option(help="TOML file with its devices, as in `ray.pools`; by default, its GPUs."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where it keeps keys, sockets and logs.")
    ] = None,
    json: Json = False,
) -> None:
    """Be a node of a cluster until TERM or Ctrl-C.

    The key pair is made here, the private key stays here. Run the same command again to go on.
    """
    import os
    import socket

    from plexsvc import config as configuration
    from plexsvc.cluster.calls import router
    from plexsvc.cluster.places import CA_VARIABLE, TOKEN_VARIABLE, Card, default_state_dir
    from plexsvc.node import joined
    from plexsvc.node.join import PoolConfig

    host = listen or joined.own_address(address)
    joining = joined.JoinedHost(
        node_id=name or socket.gethostname(),
        token=token,
        listen=host if ":" in host else f"{host}:0",
        directory=(directory or default_state_dir() / "joined").absolute(),
        pool=PoolConfig() if pool is None else configuration.load(pool, PoolConfig),
    )
    card = Card(address=address, token=token, ca=os.environ.get(CA_VARIABLE, ""))
    os.environ.pop(TOKEN_VARIABLE, None)  # the agent's processes need not see it

    def ask(request: service_pb2.JoinNodeRequest) -> service_pb2.JoinNodeReply:
        with router(card) as stub:
            return stub.JoinNode(request, timeout=_ADD_TIMEOUT_S)

    def on_up(agent: str) -> None:
        if json:
            print_json({"node_id": joining.node_id, "address": agent})
        else:
            typer.echo(f"node {joining.node_id} serves at {agent}")

    raise typer.Exit(joined.join(joining, ask, on_up=on_up))


token_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Create, list and revoke tokens with which nodes join (operators).",
    epilog="Example: plexctl node token create --name node-b",
)
node_app.add_typer(token_app, name="token")


@command(token_app, "create", example="plexctl node token create --name node-b --expires 10m")
def node_token_create(
    at: At,
    name: Annotated[str, typer.Option(help="The node that it is for; by default any.")] = "",
    expires: Annotated[str, typer.Option(help="After how long: 10m, 1h, 1d.")] = "1h",
) -> None:
    """Create a token with which one node joins once, and print it; it is kept nowhere."""
    lifetime_us = duration_us(f"--expires {expires!r} is no time from now", expires, "such as 1h")
    reply = at.ask("CreateToken", scope="join", name=name, lifetime_us=lifetime_us)
    at.show(reply, reply.secret)


@command(token_app, "list", example="plexctl node token list --json")
def node_token_list(at: At) -> None:
    """Show the tokens for nodes, without their secrets, and which nodes used them."""
    from plexsvc.show.tokens import node_tokens_view

    reply = at.ask("ListTokens")
    for index in reversed(range(len(reply.tokens))):
        if reply.tokens[index].scope != "join":
            del reply.tokens[index]
    at.show(reply, node_tokens_view(reply.tokens))


@command(token_app, "revoke", example="plexctl node token revoke tok-1f0c9a3b7d52")
def node_token_revoke(
    at: At, token_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, from the list.")]
) -> None:
    """Let no node join with a token any more. Who has joined stays: see `node shut-out`."""
    from plexsvc.show.tokens import node_tokens_view

    found = at.ask("RevokeToken", token_id=token_id)
    at.show(found, node_tokens_view([found]))


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
