"""Handlers for nodes that join with a token, and for shutting one out."""

from __future__ import annotations

from importlib.metadata import version

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import bad_request
from plexsvc.ids import NodeId
from plexsvc.rpc import certificates
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.operators import take_in
from plexsvc.scheduler.api.tokens import Tokens
from plexsvc.scheduler.core.events import NodeCordoned
from plexsvc.scheduler.live import LiveScheduler


class Joining:
    """How nodes get the right to be some, and lose it."""

    def __init__(self, scheduler: LiveScheduler, tokens: Tokens) -> None:
        self._scheduler = scheduler
        self._tokens = tokens
        self.methods: Methods = {"JoinNode": self.join, "ShutOutNode": self.shut_out}

    async def join(self, request: pb.JoinNodeRequest) -> pb.JoinNodeReply:
        """Give a node its certificate; once its agent serves, take it in.

        Raises:
            PlexError: as `Members.issue` and `take_in`; `bad_request` for the name of another
                node that is up, and when another node's agent serves at the address.
        """
        self._scheduler.check_open()
        members = self._scheduler.members
        if not request.agent:
            self._check_name(request.request)
        row = await members.issue(request.request, token=self._tokens.joining(request.token_id))
        if request.agent:
            link = await take_in(self._scheduler, request.agent)
            if link.node_id != row.node_id:
                raise bad_request(
                    f"the agent at {request.agent} is node {link.node_id!r}, not {row.node_id!r}"
                )
        return pb.JoinNodeReply(
            certificate=row.certificate,
            authority=members.keys.certificate,
            version=version("plexsvc"),
            wall_us=self._scheduler.clock.wall_us(),
        )

    def _check_name(self, request: str) -> None:
        """Refuse another host than the one that is up under a name, before it starts anything."""
        node_id, public_key = certificates.requested(request)
        is_up = self._scheduler.nodes.is_up(NodeId(node_id))
        if is_up and not self._scheduler.members.is_of(node_id, public_key):
            raise bad_request(
                f"another host is node {node_id!r}, and is up; give this one another name "
                "(`plexctl node join --name`)",
                node=node_id,
            )

    async def shut_out(self, request: pb.ShutOutNodeRequest) -> pb.ShutOutNodeReply:
        """Refuse a node everywhere from now on; what runs there is lost with its lease.

        Raises:
            PlexError: as `Members.shut_out`.
        """
        self._scheduler.check_open()
        rows = await self._scheduler.members.shut_out(request.node_id)
        node_id = NodeId(request.node_id)
        self._scheduler.nodes.shut_out(node_id)
        if self._scheduler.nodes.is_up(node_id):  # until its lease is over
            await self._scheduler.post(NodeCordoned(node_id=node_id)).decision
        return pb.ShutOutNodeReply(node_id=request.node_id, serials=[row.serial for row in rows])
