"""TLS between members on different hosts, for lines that are not gRPC's."""

from __future__ import annotations

import os
import ssl

from plexsvc.rpc.keys import ClusterKeys


def client_context(keys: ClusterKeys) -> ssl.SSLContext:
    """Return the context of a member that calls another by `certificates.TLS_NAME`."""
    return _showing(keys, ssl.create_default_context(cadata=keys.root))


def server_context(keys: ClusterKeys) -> ssl.SSLContext:
    """Return the context of a member that takes members alone."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=keys.root)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # each line has a handshake of its own
    return _showing(keys, context)


def _showing(keys: ClusterKeys, context: ssl.SSLContext) -> ssl.SSLContext:
    # Newer Pythons ask for extensions that certificates of a cluster do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    pair = f"{keys.certificate}\n{keys.private_key}".encode()
    with os.fdopen(os.memfd_create("plexsvc-certificate"), "wb") as file:
        file.write(pair)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")  # it reads files alone
    return context
