"""Program that makes a host a node: finds its devices, writes its agent's file, becomes the agent.

The node's key pair is made here, and its private key stays here.

`python -m plexsvc.node.join --config FILE` refuses, before anything starts, a host that does not
fit: another version of plexsvc, no GPU where none was configured, model roots that are not there.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from plexsvc import config as configuration
from plexsvc.errors import PlexError, bad_request, unavailable
from plexsvc.node import toml
from plexsvc.node.config import DEVICE_KINDS, AgentConfig, DeviceConfig, HostShare, host_share
from plexsvc.node.discovery import half_of_memory, on_gpus
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import ClusterKeys, read_keys, write_keys, write_private
from plexsvc.statelink.cuda import Gpu, gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig(HostShare):
    """What nodes of one pool have."""

    devices: tuple[DeviceConfig, ...] = ()
    """Devices of each, in index order; empty: all of its GPUs."""
    kind: str = ""
    """Kind of those GPUs; empty: the first half trains and the other generates."""
    host_bytes: int = 0
    """Host memory for parked state and published weight versions; 0: half of what is there."""

    def __post_init__(self) -> None:
        if self.kind and (self.kind not in DEVICE_KINDS or self.devices):
            raise bad_request(
                f"kind = {self.kind!r} of a pool is for GPUs that are found: one of "
                f"{', '.join(DEVICE_KINDS)}, and no devices beside it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig:
    """What a host needs to know to become a node."""

    node_id: str
    """Its name, unique in the cluster."""
    listen: str
    """Its own address, as other hosts reach it, with a port; 0: a free one."""
    is_replacement: bool = False
    """Whether an earlier agent served there."""
    directory: Path
    """Where nodes of this host have their directories, private to this user."""
    certificate: str = ""
    """Of the node's key pair, PEM; empty where it is yet to be asked for."""
    authority: str
    """The service's certificate, PEM."""
    version: str
    """plexsvc's, of the service."""
    roots: tuple[Path, ...] = ()
    """Directories that have to be there."""
    pool: PoolConfig
    """What it has."""


def agent_config(config: JoinConfig, found: Sequence[Gpu]) -> AgentConfig:
    """Return what the host's agent is to be, with these GPUs.

    Raises:
        PlexError: `bad_request` for a host that does not fit.
    """
    pool = config.pool
    mine = version("plexsvc")
    if mine != config.version:
        raise _bad(config, f"has plexsvc {mine}, the service {config.version}; install that here")
    missing = next((root for root in config.roots if not root.is_dir()), None)
    if missing is not None:
        raise _bad(config, f"has no directory {missing}, where the service's models lie; mount it")
    devices = pool.devices or on_gpus(found, kind=pool.kind)
    if not devices:
        raise _bad(config, "has no GPU that CUDA finds; say in its pool what its devices are")
    directory = place_of(config)
    return AgentConfig(
        node_id=config.node_id,
        devices=devices,
        runtime_dir=directory,
        log_dir=directory / "logs",
        is_replacement=config.is_replacement,
        listen=config.listen,
        keys_file=keys_file(config),
        **host_share(pool) | {"host_bytes": pool.host_bytes or half_of_memory()},
    )


def place_of(config: JoinConfig) -> Path:
    """Return where the node keeps what it has."""
    return config.directory / config.node_id


def keys_file(config: JoinConfig) -> Path:
    """Return where the node's keys are."""
    return place_of(config) / "keys.json"


def private_key(place: Path) -> str:
    """Return the private key of the node in a directory, made now if it has none."""
    path = place / "key.pem"
    if not path.exists():
        write_private(path, certificates.new_key())
    return path.read_text()


def take_keys(config: JoinConfig) -> None:
    """Write the node's keys, unless they are there: its certificate, and a secret of its own.

    The certificate may have been renewed since it was given.
    """
    path = keys_file(config)
    if not path.exists() or _is_older(read_keys(path), config):
        keys = ClusterKeys(
            secret=secrets.token_urlsafe(32),
            certificate=config.certificate,
            private_key=private_key(path.parent),
            authority=config.authority,
        )
        write_keys(path, keys)


def _is_older(keys: ClusterKeys, config: JoinConfig) -> bool:
    """Return whether keys are of another cluster, or of a certificate before the one given."""
    mine, given = certificates.read(keys.certificate), certificates.read(config.certificate)
    if keys.authority != config.authority:
        return True
    return mine.serial != given.serial and mine.issued_us <= given.issued_us


def hold(config: JoinConfig) -> None:
    """Hold the node's directory for as long as this process lives, whatever it becomes.

    Raises:
        PlexError: `bad_request` when another user owns it, `unavailable` when an agent has it.
    """
    directory = place_of(config)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.geteuid():
        raise _bad(config, f"cannot use {directory}, which another user owns")
    directory.chmod(0o700)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise unavailable(
            f"another agent has {directory}; give the node another name, or wait for its end"
        ) from error
    os.set_inheritable(descriptor, True)  # the agent that this process becomes holds it on


def _bad(config: JoinConfig, what: str) -> PlexError:
    return bad_request(f"node {config.node_id} {what}")


def main() -> None:
    """Become the agent of this host."""
    parser = argparse.ArgumentParser(prog="plexsvc.node.join")
    parser.add_argument("--config", required=True, type=Path, help="TOML file of a JoinConfig")
    parser.add_argument("--request", action="store_true", help="print the request for it alone")
    parser.add_argument("--parent-death", metavar="PID", help="the agent dies when PID dies")
    options = parser.parse_args()
    try:
        config = configuration.load(options.config, JoinConfig)
        if options.request:
            key = private_key(place_of(config))
            sys.stdout.write(certificates.request_for(key, node_id=config.node_id))
            return
        agent = agent_config(config, gpus())
        hold(config)
        take_keys(config)
    except PlexError as error:
        sys.exit(str(error))
    path = agent.runtime_dir / "agent.toml"
    path.write_text(toml.dumps(agent))
    command = [sys.executable, "-m", "plexsvc.node.agent", "--config", str(path)]
    if options.parent_death is not None:
        command += ["--parent-death", options.parent_death]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
