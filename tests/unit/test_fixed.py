"""Configuration: every key and every fixed value of the files is read by the code."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import plexsvc
from plexsvc.cluster.config import ClusterConfig
from plexsvc.node.config import AgentConfig
from plexsvc.router.config import RouterConfig

FILES = [path.read_text() for path in sorted(Path(plexsvc.__path__[0]).rglob("*.py"))]
READ = {name for code in FILES for name in re.findall(r"\.(\w+)\b(?!\s*=[^=])", code)}
"""Names that are read of something."""
ASKED = {name for code in FILES if "getattr(" in code for name in re.findall(r'"(\w+)"', code)}
"""Names that may be asked for by `getattr`."""


def configured(owner: type) -> Iterator[tuple[str, str]]:
    """Yield each field of a configuration class and of those in it: the class, the field."""
    hints = typing.get_type_hints(owner)
    for field in fields(owner):
        yield owner.__name__, field.name
        for part in (hints[field.name], *typing.get_args(hints[field.name])):
            if is_dataclass(part):
                yield from configured(typing.cast("type", part))


KEYS = sorted(
    {key for one in (ClusterConfig, RouterConfig, AgentConfig) for key in configured(one)}
)


@pytest.mark.parametrize(("owner", "key"), KEYS)
def test_a_key_is_read(owner: str, key: str) -> None:
    assert key in READ | ASKED, f"nothing reads {owner}.{key}: it changes nothing"


def test_there_are_keys_of_all_parts() -> None:
    assert len(KEYS) > 100
    assert {owner for owner, _ in KEYS} >= {"SchedulerConfig", "RewardConfig", "NodeConfig"}
