"""Other hosts of a cluster: channels to them, and who they are by the certificates they show."""

from __future__ import annotations

import asyncio
import socket
import ssl

import grpc.aio

from plexsvc.errors import unavailable
from plexsvc.rpc import certificates
from plexsvc.rpc.addresses import socket_path
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.rpc.tls import client_context


class Peers:
    """What a member reaches others by."""

    def __init__(self, keys: ClusterKeys, *, timeout_s: float) -> None:
        self._keys = keys
        self._timeout_s = timeout_s

    def dial(self, target: str) -> grpc.aio.Channel:
        """Return a channel, as `open_channel` does."""
        return open_channel(target, self._keys)

    async def node_at(self, target: str) -> str:
        """Return the node whose certificate is shown at an address.

        Empty where none is shown (a Unix socket), or the service's own.

        Raises:
            PlexError: `unauthenticated` for a node that was shut out or whose certificate has
                expired; `unavailable` when nobody of this cluster answers.
        """
        if socket_path(target) is not None:
            return ""
        certificate = await asyncio.to_thread(self._shown_at, target)
        refusal = self._keys.refusal_of_certificate(certificate)
        if refusal is not None:
            raise refusal
        is_service = certificate.strip() == self._keys.root.strip()
        return "" if is_service else certificates.read(certificate).node_id

    def _shown_at(self, target: str) -> str:
        host, _, port = target.rpartition(":")
        context = client_context(self._keys)
        # gRPC hangs up on whoever does not say that he speaks HTTP/2.
        context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection((host.strip("[]"), int(port)), self._timeout_s) as plain,
                context.wrap_socket(plain, server_hostname=certificates.TLS_NAME) as line,
            ):
                shown = line.getpeercert(binary_form=True)
        except OSError as error:
            raise unavailable(
                f"no member of this cluster answers at {target}: {error}; start the agent there, "
                "on another host with `plexctl node join`"
            ) from error
        assert shown is not None, target
        return ssl.DER_cert_to_PEM_cert(shown)
