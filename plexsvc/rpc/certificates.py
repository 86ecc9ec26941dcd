"""Certificates of the nodes that join a cluster: asked for, signed and read.

A node makes its own key pair and sends a request with the public key. Whoever has the cluster's
keys signs a certificate for it. Each has a serial of its own, so that one node can be shut out.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from plexsvc.errors import bad_request

if TYPE_CHECKING:
    from cryptography import x509

TLS_NAME: Final = "plexsvc"
"""The name in every certificate of a cluster: hosts are told apart by nothing but their keys."""

VALID_US: Final = 365 * 86_400_000_000
"""How long a node's certificate is valid, unless configured otherwise."""
_EARLY: Final = dt.timedelta(hours=1)
"""How far the clock of a node may be behind the service's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a certificate says."""

    serial: str
    """Hexadecimal."""
    node_id: str
    issued_us: int
    expires_us: int


def new_key() -> str:
    """Return a new private key, PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


def request_for(private_key: str, *, node_id: str) -> str:
    """Return the request, PEM, for a certificate of a node; it holds nothing secret.

    Raises:
        PlexError: `bad_request` for a name that a node cannot have.
    """
    from cryptography.hazmat.primitives import serialization

    _check_name(node_id)
    made = _asked(private_key, f"{_PREFIX}{node_id}")
    return made.public_bytes(serialization.Encoding.PEM).decode()


def self_signed(private_key: str, *, now_us: int, valid_us: int) -> str:
    """Return the certificate, PEM, of a key that signs those of nodes."""
    made = _asked(private_key, TLS_NAME)
    return _signed(made, authority=None, private_key=private_key, now_us=now_us, valid_us=valid_us)


def requested(request: str) -> tuple[str, bytes]:
    """Return which node a request is for, and its public key, DER.

    Raises:
        PlexError: `bad_request` for what is no request, or not signed with its own key.
    """
    from cryptography.hazmat.primitives import serialization

    made = _loaded(request)
    node_id = _node_of(made.subject)
    _check_name(node_id)
    key = made.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return node_id, key


def sign(
    request: str, *, authority: str, private_key: str, now_us: int, valid_us: int = VALID_US
) -> str:
    """Return the certificate, PEM, that a request asks for, signed with an authority's key.

    Raises:
        PlexError: as `requested`.
    """
    return _signed(
        _loaded(request),
        authority=authority,
        private_key=private_key,
        now_us=now_us,
        valid_us=valid_us,
    )


def renew(
    certificate: str, *, authority: str, private_key: str, now_us: int, valid_us: int = VALID_US
) -> str:
    """Return a new certificate, PEM, for the name and the key of one that is about to end."""
    from cryptography import x509

    return _signed(
        x509.load_pem_x509_certificate(certificate.encode()),
        authority=authority,
        private_key=private_key,
        now_us=now_us,
        valid_us=valid_us,
    )


def is_of(certificate: str, private_key: str) -> bool:
    """Return whether a certificate is for the key pair of a private key, both PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(private_key.encode(), password=None)
    return x509.load_pem_x509_certificate(certificate.encode()).public_key() == key.public_key()


def _signed(
    made: x509.CertificateSigningRequest | x509.Certificate,
    *,
    authority: str | None,
    private_key: str,
    now_us: int,
    valid_us: int,
) -> str:
    """Return a certificate that an authority signs, or with none one that signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    issuer = None
    if authority is not None:
        issuer = x509.load_pem_x509_certificate(authority.encode()).subject
    signer = serialization.load_pem_private_key(private_key.encode(), password=None)
    now = dt.datetime.fromtimestamp(now_us / 1e6, dt.UTC)
    until = now + dt.timedelta(microseconds=valid_us)
    # One that signs itself signs those of nodes, too, and these sign no more.
    signs = x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None)
    return (
        x509.CertificateBuilder()
        .subject_name(made.subject)
        .issuer_name(issuer or made.subject)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - _EARLY)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(signs, critical=True)
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )


@functools.lru_cache(maxsize=4096)
def read(certificate: str) -> Facts:
    """Return what a certificate, PEM, says."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.encode())
    return Facts(
        serial=f"{found.serial_number:x}",
        node_id=_node_of(found.subject),
        issued_us=round((found.not_valid_before_utc + _EARLY).timestamp() * 1e6),
        expires_us=round(found.not_valid_after_utc.timestamp() * 1e6),
    )


def _loaded(request: str) -> x509.CertificateSigningRequest:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        made = x509.load_pem_x509_csr(request.encode())
        is_good = made.is_signature_valid and isinstance(
            made.public_key(), ec.EllipticCurvePublicKey
        )
    except (ValueError, UnsupportedAlgorithm) as error:
        raise bad_request(f"the request for a certificate cannot be read: {error}") from error
    if not is_good:
        raise bad_request(
            "the request for a certificate is not signed with its own elliptic-curve key"
        )
    return made


def _check_name(node_id: str) -> None:
    if not _NAME.fullmatch(node_id):
        raise bad_request(
            f"a node's name is {node_id[:80]!r}; it is 1 to 59 of a-z A-Z 0-9 . _ -, and begins "
            "with a letter or digit"
        )


def _asked(private_key: str, name: str) -> x509.CertificateSigningRequest:
    """Return the request of a key pair for a certificate of a name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key = serialization.load_pem_private_key(private_key.encode(), password=None)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return made.sign(key, hashes.SHA256())  # type: ignore[arg-type]


def _node_of(subject: x509.Name) -> str:
    from cryptography import x509

    names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value).removeprefix(_PREFIX) if names else ""


_PREFIX: Final = "node "
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,58}")
