"""TLS of the port that clients connect to."""

from __future__ import annotations

import grpc

from plexsvc.errors import bad_request
from plexsvc.router.config import RouterConfig


def client_tls(config: RouterConfig) -> grpc.ServerCredentials | None:
    """Return the credentials that clients are shown, None where they are spoken to in clear.

    Raises:
        PlexError: `bad_request` when only one of certificate and key is given or cannot be read.
    """
    if config.tls_cert is None and config.tls_key is None:
        return None
    if config.tls_cert is None or config.tls_key is None:
        raise bad_request(
            "router.tls_cert and router.tls_key belong together: give both, or neither"
        )
    try:
        pair = (config.tls_key.read_bytes(), config.tls_cert.read_bytes())
    except OSError as error:
        raise bad_request(f"router.tls_cert or router.tls_key cannot be read: {error}") from error
    return grpc.ssl_server_credentials([pair])
