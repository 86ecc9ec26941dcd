"""Keys of the tests' cluster and of its nodes, and of a cluster that is not theirs."""

from __future__ import annotations

from pathlib import Path

from plexsvc.clock import SystemClock
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import ClusterKeys, make_keys, write_keys

KEYS = make_keys()
FOREIGN = make_keys()


def member(
    node_id: str, *, of: ClusterKeys = KEYS, valid_us: int = certificates.VALID_US
) -> ClusterKeys:
    """Return the keys of a node that joined a cluster."""
    private_key = certificates.new_key()
    request = certificates.request_for(private_key, node_id=node_id)
    return ClusterKeys(
        secret=f"of {node_id}",
        certificate=signed(request, of=of, valid_us=valid_us),
        private_key=private_key,
        authority=of.certificate,
    )


def signed(request: str, *, of: ClusterKeys = KEYS, valid_us: int = certificates.VALID_US) -> str:
    """Return the certificate that a cluster gives for a request."""
    return certificates.sign(
        request,
        authority=of.certificate,
        private_key=of.private_key,
        now_us=SystemClock().wall_us(),
        valid_us=valid_us,
    )


def keys_file(directory: Path) -> Path:
    """Return a file of the tests' keys in a directory that is there."""
    path = directory / "keys.json"
    if not path.exists():
        write_keys(path, KEYS)
    return path
