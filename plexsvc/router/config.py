"""Configuration of a router: who may call, how much one call may carry, how long it may take."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from plexclient.specs import Parallel
from plexsvc.errors import bad_request
from plexsvc.fixed import Fixed
from plexsvc.weights import object_store


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerModel:
    """How clients of the Tinker SDK train and sample a base model: all of its parameters."""

    model: str
    """Its Hugging Face directory, as a deployment names it."""

    backend: str = "megatron"
    """What trains it."""

    parallel: Parallel = Parallel()  # noqa: RUF009 - frozen
    """How it is spread over devices while it trains."""

    dtype: str = ""
    """What it computes in; empty: the device's default."""

    micro_batch_tokens: int = 0
    """Tokens of a micro-batch; 0: the router's default."""

    max_model_len: int = 0
    """Longest prompt and answer of its engine; 0: what the model was made for."""

    kv_cache_bytes: int = 0
    """Of its engine; 0: the cluster's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The `[router]` table."""

    listen: str = "127.0.0.1:50051"
    """Where clients connect, when the router is a process of its own; port 0 picks a free one."""

    http_listen: str = ""
    """Where browsers and clients that speak HTTP connect: HOST:PORT, port 0 picks a free one.
    Empty: nowhere; `plexctl up` without a file takes a free port of 127.0.0.1."""

    scheduler: str = ""
    """gRPC target of the scheduler, when the router is a process of its own."""

    reward: str = ""
    """gRPC target of the reward proxy, when the router is a process of its own."""

    keys_file: Path = Path()
    """The cluster's keys, when the router is a process of its own."""

    tls_cert: Path | None = None
    """PEM file of the certificate that clients are shown, with those between it and its root;
    None: clients are spoken to in clear, tokens and all."""

    tls_key: Path | None = None
    """PEM file of the certificate's private key."""

    tokens: dict[str, str] = field(default_factory=dict)
    """Bearer token → tenant. A call without a token listed here is refused `unauthenticated`."""

    token_ends: dict[str, datetime] = field(default_factory=dict)
    """Bearer token → when it ends, with the offset from UTC, as in `2027-01-31T00:00:00Z`. Calls
    that begin later are refused `unauthenticated`; streams that are open go on. Those not named
    do not end."""

    operators: tuple[str, ...] = ()
    """Tenants that may administer the cluster (nodes, packing) and see every tenant's names; others
    are refused `forbidden`. Empty: nobody; under `plexctl up`: the tenant of its card's token."""

    tinker: dict[str, TinkerModel] = field(default_factory=dict)
    """Base models of Tinker clients by the name that these give, trained whole at any LoRA rank.
    Other names are model directories, and rank 0 trains them whole."""

    max_payload_bytes: Fixed[int] = 4 << 30
    """Bytes of one batch; a larger one is refused with `payload_too_large`."""

    max_batch_tokens: int = 16 << 20
    """Tokens of one batch; a longer one is refused with `payload_too_large`."""

    max_batch_sequences: Fixed[int] = 64 << 10
    """Sequences of one batch; more are refused with `payload_too_large`. Bounds the plan."""

    max_prompts: Fixed[int] = 16 << 10
    """Prompts of one generate; more are refused with `payload_too_large`."""

    max_score_samples: Fixed[int] = 4096
    """Samples of one request to score; more are refused with `payload_too_large`. A batch may come
    in several."""

    max_batch_arrays: Fixed[int] = 64
    """Arrays of one batch; more are refused with `payload_too_large`."""

    max_after: Fixed[int] = 256
    """Operations that one may wait for by id; more are refused with `bad_request`."""

    max_name_chars: Fixed[int] = 128
    """Characters of an id, a name or a label; a longer one is refused with `bad_request`."""

    max_labels: Fixed[int] = 64
    """Labels of a job; more are refused with `bad_request`."""

    max_metrics: Fixed[int] = 64
    """Progress figures of a job; more are refused with `bad_request`."""

    max_chunk_bytes: Fixed[int] = 1 << 20
    """Bytes of one message of an upload; a larger one is refused with `bad_request`."""

    max_calls: Fixed[int] = 16_384
    """Calls under way at once, streams included, whoever makes them; the next ends at once. A
    tenant has as many of them at most as are left free; its next is refused with `queue_full`."""

    max_connections: Fixed[int] = 4096
    """Connections open at once; the next is closed, before anybody is asked for a token."""

    max_uploads: Fixed[int] = 64
    """Uploads relayed at once; the next is refused with `staging_full` and may be tried again. A
    tenant has as many of them at most as are left free."""

    max_operations_per_stream: Fixed[int] = 4096
    """Operations of one stream under way or not yet told their answer; the next is refused with
    `queue_full` and may be submitted again."""

    upload_stall_us: Fixed[int] = 30_000_000
    """How long an upload may send nothing; then it is refused with `staging_timeout`. While it
    sends, the scheduler is told as often."""

    model_roots: tuple[Path, ...] = ()
    """Directories that models of every tenant may lie in; under `plexctl up`, unless named:
    `models` in the state directory."""

    checkpoint_root: Path | None = None
    """Directory with a directory for each tenant, below which its checkpoints and exports lie;
    under `plexctl up`, unless named: `checkpoints` in the state directory."""

    roots: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Tenant → further directories that its models, checkpoints and exports may lie in. Tenants
    with a directory in common share what lies there, but not each other's checkpoints."""

    checkpoint_stores: dict[str, str] = field(default_factory=dict)
    """Tenant → URL of an object store, such as `s3://bucket/prefix`: what `checkpoint_every` writes
    lies below `URL/TENANT`, in place of the tenant's directory. The packages that fsspec needs for
    it are installed on every node, and credentials are in the environment of every agent and of the
    service."""

    max_deployments_cached: Fixed[int] = 4096
    """Deployments whose layout the router remembers."""

    deployment_ttl_us: Fixed[int] = 5_000_000
    """How long it trusts what it remembers of a deployment."""

    control_timeout_us: Fixed[int] = 30_000_000
    """Deadline of a short call to the scheduler."""

    wait_timeout_us: Fixed[int] = 3_600_000_000
    """Deadline of calls that wait for work: operations, deployments, uploads, streams."""

    def __post_init__(self) -> None:
        """Refuse what could not be kept apart, and what is no store."""
        for tenant, url in self.checkpoint_stores.items():
            if not object_store.is_url(url):
                raise bad_request(
                    f"checkpoint_stores of tenant {tenant!r} has {url!r}, which is no URL; name an "
                    "object store as s3://bucket/prefix, or a directory in `roots`"
                )
        if self.keys_file != Path():
            self.check_roots(self.keys_file.parent)

    def check_roots(self, state_dir: Path) -> None:
        """Refuse roots that would show a tenant the cluster's token, keys or journal.

        Raises:
            PlexError: `bad_request` for a root that holds the state directory, or lies in it and
                is not its `models` or `checkpoints`.
        """
        state = Path(os.path.realpath(state_dir))
        shared = (*self.model_roots, *filter(None, [self.checkpoint_root]))
        for root in (*shared, *(root for roots in self.roots.values() for root in roots)):
            place = Path(os.path.realpath(root))
            within = place.relative_to(state).parts if place.is_relative_to(state) else None
            if state.is_relative_to(place) or (
                within and within[0] not in {"models", "checkpoints"}
            ):
                raise bad_request(
                    f"root {root} {'lies in' if within else 'holds'} the state directory "
                    f"{state_dir}, where the operator's token and the cluster's keys are; name a "
                    "directory apart from it, or set another state_dir"
                )
