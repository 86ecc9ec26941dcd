"""Exports: a preset as files is the same workload."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.errors import PlexError
from plexsvc.sim.cluster import Faults, NodeAction, NodeEvent, NodeGroup, SimCluster, SwitchModel
from plexsvc.sim.export import export
from plexsvc.sim.presets import PRESETS, preset_named
from plexsvc.sim.trace import read_cluster, read_trace
from plexsvc.sim.workloads import Workload
from tests.rigs.traces import job


def again(workload: Workload, folder: Path) -> Workload:
    """Return a workload as it is read from its export."""
    trace, file = export(folder, workload)
    cluster = read_cluster(file)
    return Workload(jobs=read_trace(trace, cluster=cluster), cluster=cluster)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_the_same_workload_when_it_is_read_again(name: str, tmp_path: Path) -> None:
    preset = preset_named(name, seed=3)
    assert again(preset, tmp_path) == preset


def test_everything_a_cluster_file_can_say_comes_back(tmp_path: Path) -> None:
    cluster = SimCluster(
        nodes=4,
        devices_per_node=2,
        host_gb=10,
        disk_gb=20,
        nodes_per_host=2,
        target_slowdown=1.25,
        migrate_gb_s=3,
        switch=SwitchModel(base_s=1, link_gb_s=2, disk_gb_s=0.5, host_gb_s=3),
        faults=Faults(node_mtbf_h=9, repair_s=8, slow_switch_share=0.5, slow_switch_factor=2),
        events=(NodeEvent(at_s=5.5, action=NodeAction.JOIN, node="n00009"),),
    )
    groups = (NodeGroup(count=3, devices=8), NodeGroup(count=2, devices=4, host_gb=1))
    unequal = replace(cluster, nodes=5, unequal=groups, devices_per_node=8)
    one = replace(job("a", switch=0), node_devices=4)
    for workload in (
        Workload(jobs=(job("a", switch=0),), cluster=cluster),
        Workload(jobs=(one,), cluster=unequal),
    ):
        assert again(workload, tmp_path) == workload


def test_the_command_exports_and_what_it_wrote_plays_to_the_same_result(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["simulate", "--preset", "k-job-30b", "--export", str(tmp_path), "--json"]
    )
    assert result.exit_code == 0, result.output
    paths = json.loads(result.stdout)
    found = []
    for source in (["--preset", "k-job-30b"], [paths["trace"], "--cluster", paths["cluster"]]):
        played = CliRunner().invoke(app, ["simulate", *source, "--json"])
        assert played.exit_code == 0, played.output
        found.append({**json.loads(played.stdout), "wall_s": 0})
    assert found[0] == found[1]


def test_an_export_to_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(PlexError, match="cannot be a directory"):
        export(tmp_path / "taken", preset_named("order-3", seed=1))
