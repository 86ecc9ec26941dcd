"""Keys of a member of a cluster: the secret of its host, and the certificate that it shows others.

One file, readable by its owner alone, holds both. On one host calls carry the secret. Between hosts
both ends show a certificate (TLS). That of the service is self-signed, and it signs those of the
nodes that join: each trusts what it signed, but for those whose serials are in the file of the
nodes that were shut out. That file lies beside the keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.rpc import certificates

SECRET_KEY: Final = "plexsvc-secret"
"""The metadata of a call that holds the cluster's secret."""

SHUT_OUT: Final = "shut-out.json"
"""Name of that file."""

_VALID_US: Final = 3650 * 86_400_000_000
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKeys:
    """What a member of a cluster has and nobody else."""

    secret: str = field(repr=False)
    """Of this host; a node that joined has its own."""
    certificate: str
    """PEM."""
    private_key: str = field(repr=False)
    """PEM, of the certificate."""
    authority: str = ""
    """PEM of the service's certificate, on a node that joined; empty: it is `certificate`."""
    file: Path | None = None
    """Where they were read: a node's certificate is renewed there. None: nowhere."""

    @property
    def shut_out(self) -> Path | None:
        """The file with the serials of nodes that were shut out; None: there is none."""
        return self.file and self.file.with_name(SHUT_OUT)

    @property
    def root(self) -> str:
        """The certificate that signed those of all members, its own too, PEM."""
        return self.authority or self.certificate

    @property
    def digest(self) -> str:
        """SHA-256 of the service's certificate: no other cluster has it."""
        return hashlib.sha256(self.root.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """A name for the cluster, which tells nothing about its keys."""
        return self.digest[:12]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call of a member carries."""
        return ((SECRET_KEY, self.secret),)

    def refusal(self, metadata: Iterable[tuple[str, str | bytes]]) -> PlexError | None:
        """Return why a call with this metadata is not a member's, None when it is."""
        given = next((str(value) for key, value in metadata if key == SECRET_KEY), "")
        if hmac.compare_digest(given.encode(), self.secret.encode()):
            return None
        what = "the secret of another cluster, or an old one" if given else "no secret"
        return PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"the call carries {what}; only processes with this cluster's keys may call "
            f"(metadata {SECRET_KEY})",
        )

    def refusal_of_peer(
        self, shown: Mapping[str, Iterable[bytes]], *, takes_nodes: bool
    ) -> PlexError | None:
        """Return why who shows this in TLS is refused, None for a member that is let in."""
        found = next(iter(shown.get("x509_pem_cert", ())), None)
        if found is None:
            return self.refusal(())
        certificate = found.decode()
        refusal = self.refusal_of_certificate(certificate)
        if refusal is not None or takes_nodes or certificate.strip() == self.root.strip():
            return refusal
        node_id = certificates.read(certificate).node_id
        return PlexError(
            ErrorCode.FORBIDDEN,
            f"node {node_id!r} may read versions of other nodes and lead rollouts, and nothing "
            "else; only the service calls this",
            node=node_id,
        )

    def refusal_of_certificate(self, certificate: str) -> PlexError | None:
        """Return why a certificate that the cluster signed is refused, None while it is not."""
        if certificate.strip() == self.root.strip():
            return None
        facts = certificates.read(certificate)
        if facts.serial in read_shut_out(self.shut_out):
            what = "was shut out"
        elif facts.expires_us <= _CLOCK.wall_us():
            what = "has expired"
        else:
            return None
        return PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"certificate {facts.serial} of node {facts.node_id!r} {what}; the node may join again "
            "with a new token (`plexctl node token create`)",
            node=facts.node_id,
        )


_read: dict[Path, tuple[tuple[int, int], frozenset[str]]] = {}
_CLOCK: Final = SystemClock()


def read_shut_out(path: Path | None) -> frozenset[str]:
    """Return the serials in a file, which is read again when it is another one."""
    if path is None:
        return frozenset()
    try:
        found = path.stat()
        # The file is replaced, never changed: a new one has another inode.
        mark = (found.st_ino, found.st_mtime_ns)
        if path not in _read or _read[path][0] != mark:
            _read[path] = (mark, frozenset(json.loads(path.read_text())))
    except FileNotFoundError:
        return frozenset()
    return _read[path][1]


def write_shut_out(path: Path, serials: Iterable[str]) -> None:
    """Have every process that reads its keys beside `path` refuse nodes with these serials."""
    write_private(path, json.dumps(sorted(serials)))


def make_keys() -> ClusterKeys:
    """Return new keys."""
    key = certificates.new_key()
    return ClusterKeys(
        secret=secrets.token_urlsafe(32),
        certificate=certificates.self_signed(key, now_us=_CLOCK.wall_us(), valid_us=_VALID_US),
        private_key=key,
    )


def read_keys(path: Path) -> ClusterKeys:
    """Return the keys in `path`.

    Raises:
        PlexError: `bad_request` when the file is missing, broken, or open to other users.
    """
    try:
        with path.open() as file:
            _check_private(path, os.fstat(file.fileno()))
            return ClusterKeys(**json.load(file), file=path)
    except (OSError, ValueError, TypeError) as error:
        raise bad_request(
            f"keys_file {path} cannot be read ({type(error).__name__}: {error}); `plexctl up` "
            "makes it, and on other hosts `plexctl node join`"
        ) from error


def renewed(keys: ClusterKeys) -> ClusterKeys:
    """Return what to show a new caller: a node's file may have another certificate by now."""
    if keys.file is None or not keys.authority:
        return keys
    try:
        return read_keys(keys.file)
    except PlexError:  # it is gone with the node's directory
        return keys


def keep_keys(path: Path) -> ClusterKeys:
    """Return the keys in `path`, made and written now if there is no such file.

    Raises:
        PlexError: as `read_keys`.
    """
    if not path.exists():
        write_keys(path, make_keys())
    return read_keys(path)


def write_keys(path: Path, keys: ClusterKeys) -> None:
    """Write keys in one step, readable by this user alone."""
    kept = {name: value for name, value in asdict(keys).items() if name != "file"}
    write_private(path, json.dumps(kept))


def write_private(path: Path, text: str) -> None:
    """Write a file in one step, readable by this user alone."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)


def _check_private(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise bad_request(
            f"keys_file {path} has mode {stat.S_IMODE(found.st_mode):o} and belongs to user "
            f"{found.st_uid}; only user {os.geteuid()} may read it: chmod 600, and make new keys "
            "if others could"
        )
