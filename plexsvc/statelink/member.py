"""Configuration of every process of a WPG, rank or instance, as it is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Who a process is, what it runs, and where."""

    wpg_id: str
    """Its group."""
    rank: int
    """Its number in the group."""
    incarnation: int
    """Which generation of the group's processes it is."""
    scheduler_epoch: int
    """The epoch of the scheduler that asked for it."""
    tenant: str
    """Whose job it is: tenants share staging memory."""
    job_id: str
    """The job it works for: versions and payloads of others are not found."""
    deployment_id: str
    """The deployment it realises; empty: deployments use it in turn."""
    model: str
    """Hugging Face directory; of an instance, its weights are version 0."""
    model_root: str = ""
    """The root of its tenant that the model lies below."""
    seed: int = 0
    """The deployment's."""
    device_index: int = 0
    """Its device on its node."""
    node_id: str = ""
    """Its node."""
    data_socket: str = ""
    """The state manager's data plane: weight versions and staged payloads."""
    listen: str = ""
    """Where it serves: `HOST:0` or `unix:PATH`, from the node agent."""
    keys_file: Path = Path()
    """The cluster's keys, from the node agent."""
