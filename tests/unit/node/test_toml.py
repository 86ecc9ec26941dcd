"""A written configuration reads back equal."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from plexsvc import config as configuration
from plexsvc.node import toml
from plexsvc.node.config import AgentConfig, DeviceConfig, ImageConfig

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DEVICES = st.builds(
    DeviceConfig,
    kind=st.sampled_from(["train", "rollout", "spot"]),
    bytes_total=st.integers(1, 1 << 40),
) | st.builds(
    DeviceConfig,
    kind=st.just("reward"),
    bytes_total=st.integers(1, 1 << 40),
    cpus=st.integers(1, 1 << 10),
)


@given(
    config=st.builds(
        AgentConfig,
        node_id=st.text("aZ9_-", min_size=1, max_size=20),
        devices=st.lists(DEVICES, min_size=1, max_size=3).map(tuple),
        runtime_dir=st.just(Path("/run/a b")),
        keys_file=st.just(Path("/keys")),
        log_dir=st.none() | st.just(Path("logs")),
        images=st.lists(
            st.builds(ImageConfig, name=TEXT, preload=TEXT, entrypoint=TEXT), max_size=2
        ).map(tuple),
        state_manager_argv=st.lists(TEXT, max_size=2).map(tuple),
        keep_pages=st.booleans(),
    )
)
def test_an_agents_configuration_survives_the_file(config: AgentConfig) -> None:
    table = tomllib.loads(toml.dumps(config))
    assert configuration.parse(table, AgentConfig, where="test") == config
