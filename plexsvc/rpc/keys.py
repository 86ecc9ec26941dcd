"""Keys of a cluster: the secret and the certificate by which its processes know each other.

One file, readable by its owner alone, holds both. Whoever has it is a member of the cluster: each
call between members carries the secret, and between hosts both ends also show the certificate,
which is self-signed and the only one that they trust.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from plexsvc.errors import ErrorCode, PlexError, bad_request

SECRET_KEY: Final = "plexsvc-secret"
"""The metadata of a call that holds the cluster's secret."""

TLS_NAME: Final = "plexsvc"
"""The name in every cluster's certificate: hosts are told apart by nothing but their keys."""

_VALID_DAYS: Final = 3650
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKeys:
    """What a member of a cluster has and nobody else."""

    secret: str = field(repr=False)
    certificate: str
    """PEM."""
    private_key: str = field(repr=False)
    """PEM, of the certificate."""

    @property
    def fingerprint(self) -> str:
        """A name for the cluster, which tells nothing about its keys."""
        return hashlib.sha256(self.certificate.encode()).hexdigest()[:12]

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


def make_keys() -> ClusterKeys:
    """Return new keys."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return ClusterKeys(
        secret=secrets.token_urlsafe(32),
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        private_key=private.decode(),
    )


def read_keys(path: Path) -> ClusterKeys:
    """Return the keys in `path`.

    Raises:
        PlexError: `bad_request` when the file is missing, broken, or open to other users.
    """
    try:
        with path.open() as file:
            _check_private(path, os.fstat(file.fileno()))
            return ClusterKeys(**json.load(file))
    except (OSError, ValueError, TypeError) as error:
        raise bad_request(
            f"keys_file {path} cannot be read ({type(error).__name__}: {error}); copy it from the "
            "state directory of the cluster's `plexctl up`"
        ) from error


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
    unfinished = path.with_name(f".{path.name}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(keys), file)
    unfinished.replace(path)


def _check_private(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise bad_request(
            f"keys_file {path} has mode {stat.S_IMODE(found.st_mode):o} and belongs to user "
            f"{found.st_uid}; only user {os.geteuid()} may read it: chmod 600, and make new keys "
            "if others could"
        )
