"""Traces and cluster files: what is read, written and read again, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.planning.profile import Mode, SyncAt
from plexsvc.sim.cluster import Faults, NodeAction, NodeEvent, NodeGroup, SimCluster, SwitchModel
from plexsvc.sim.presets import PRESETS, preset_named
from plexsvc.sim.trace import export, read_cluster, read_trace
from plexsvc.sim.workloads import Workload
from tests.rigs.traces import job

GOOD: dict[str, Any] = {
    "job_id": "a",
    "arrival_s": 1.5,
    "nodes": 2,
    "cycles": 3,
    "period_s": 100,
    "segments": [
        {"phase": "log_prob", "offset_s": 0, "duration_s": 5},
        {"phase": "update", "offset_s": 5, "duration_s": 20},
    ],
}


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_a_line_has_documented_defaults(tmp_path: Path) -> None:
    (job,) = read_trace(write(tmp_path, GOOD), cluster=SimCluster(nodes=4))
    profile = job.demand.profile
    assert (profile.mode, profile.sync_at, profile.switch_us) == (Mode.SYNC, SyncAt.UPDATE, 0)
    assert (job.jitter_cv, job.demand.max_slowdown_ppm, job.demand.rollout_units) == (
        0,
        1_500_000,
        0,
    )
    assert (job.demand.arrived_us, profile.busy_us, job.cycles) == (1_500_000, 25_000_000, 3)


def test_a_switch_costs_the_state_out_and_in_over_the_link(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"nodes": 4, "switch": {"base_s": 1, "link_gb_s": 10}}')
    cluster = read_cluster(path)
    (job,) = read_trace(write(tmp_path, {**GOOD, "state_gb": 40}), cluster=cluster)
    assert job.demand.profile.switch_us == 5_000_000
    assert job.demand.state_bytes == 20 * 10**9


def test_what_is_on_record_of_a_job_may_differ_from_what_it_does(tmp_path: Path) -> None:
    first, second = GOOD["segments"]
    halved = [first, {**second, "duration_s": 10}]
    line = {**GOOD, "believed": halved, "grown": GOOD["segments"], "switch_s": 7}
    (job,) = read_trace(write(tmp_path, line), cluster=SimCluster(nodes=4))
    assert sum(segment.duration_us for segment in job.believed) == 15_000_000
    assert job.grown == job.demand.profile.segments
    assert job.demand.profile.switch_us == 7_000_000


def with_segment(**changes: object) -> dict[str, object]:
    first, second = GOOD["segments"]
    return {**GOOD, "segments": [first, {**second, **changes}]}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({**GOOD, "nodes": 5}, "nodes"),
        ({**GOOD, "nodes": 2, "rollout_nodes": 3}, "nodes"),
        ({**GOOD, "cycles": 0}, "cycles"),
        ({**GOOD, "cycles": 10**12}, "cycles"),
        ({**GOOD, "arrival_s": 1e300}, "arrival_s"),
        ({**GOOD, "jitter_cv": 1e200}, "jitter_cv"),
        ({**GOOD, "segments": GOOD["segments"] * 600}, "segments"),
        ({**GOOD, "mode": "async1", "sync_at": "boundary"}, "sync_at"),
        ({**GOOD, "period_s": 0}, "period_s"),
        ({**GOOD, "arrival_s": -1}, "arrival_s"),
        ({**GOOD, "mode": "async2"}, "mode"),
        ({**GOOD, "max_slowdown": 0.5}, "max_slowdown"),
        ({**GOOD, "state_gb": 10**6}, "state_gb"),
        ({**GOOD, "segments": []}, "segments"),
        ({**GOOD, "nodez": 1}, "nodez"),
        ({k: v for k, v in GOOD.items() if k != "cycles"}, "cycles"),
        (with_segment(duration_s=-1), "segments[1].duration_s"),
        (with_segment(duration_s=96), "segments[1]"),
        (with_segment(offset_s=4), "segments[1]"),
        (with_segment(phase=7), "segments[1].phase"),
        ({**GOOD, "job_id": "first"}, "job_id"),
        ({**GOOD, "switch_s": -1}, "switch_s"),
        ({**GOOD, "believed": GOOD["segments"][:1]}, "believed"),
        ({**GOOD, "grown": [{"phase": "log_prob", "offset_s": 0}]}, "grown[0].duration_s"),
        ([1], "(line)"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_field(
    tmp_path: Path, line: object, field: str
) -> None:
    path = write(tmp_path, {**GOOD, "job_id": "first"}, "", line)
    with pytest.raises(PlexError) as refused:
        read_trace(path, cluster=SimCluster(nodes=4))
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert refused.value.facts == {"file": str(path), "line": "3", "field": field}
    assert f"{path}, line 3, field {field}: found " in refused.value.message


def test_what_is_not_json_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match="line 1: not JSON"):
        read_trace(write(tmp_path, "{nodes"), cluster=SimCluster(nodes=4))
    with pytest.raises(PlexError, match="could not be read"):
        read_trace(tmp_path / "none", cluster=SimCluster(nodes=4))
    with pytest.raises(PlexError, match="an empty file"):
        read_trace(write(tmp_path, ""), cluster=SimCluster(nodes=4))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("[" * 100_000, "recursion"),
        ('{"job_id": "a", "job_id": "b"}', "key 'job_id' comes twice"),
        ('{"cycles": ' + "9" * 5000 + "}", "4300 digits"),
        ('{"job_id": "\\ud800"}', "surrogates"),
        ('{"nodes": NaN}', "NaN is no number"),
    ],
)
def test_a_line_that_is_no_one_object_is_refused(tmp_path: Path, line: str, what: str) -> None:
    with pytest.raises(PlexError, match=f"line 2: not JSON .*{what}"):
        read_trace(write(tmp_path, GOOD, line), cluster=SimCluster(nodes=4))


def test_a_line_ends_where_jsonl_says_and_a_byte_order_mark_is_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\ufeff" + json.dumps({**GOOD, "job_id": "a\u2028b"}, ensure_ascii=False))
    (job,) = read_trace(path, cluster=SimCluster(nodes=4))
    assert job.demand.resident_id == "a\u2028b"


def test_a_refusal_names_the_line_in_a_cluster_file_of_many(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    for text, where in (
        ('{\n "nodes": 4,\n\n "host_gb": -1\n}', "line 4, field host_gb"),
        ('{"nodes": 4,\n "faults": {\n "repair_s": -1}}', "line 3, field faults.repair_s"),
        (
            '{"nodes": 4, "events": [\n{"at_s": 1, "join": "x"},\n{"at_s": 0,\n "join": "y"}]}',
            "line 3, field events[1].at_s",
        ),
        ('{\n "nodes": 4,\n "host_gb" 3}', "line 3: not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(PlexError, match=re.escape(where)):
            read_cluster(path)


def test_the_documented_job_is_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (job,) = read_trace(write(tmp_path, json.loads(example)), cluster=SimCluster(nodes=4))
    assert job.demand.profile.busy_us == 69_000_000


def test_a_job_asks_for_nodes_of_a_size_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"nodes": [{"count": 1, "devices": 8}, {"count": 2, "devices": 4}]}')
    cluster = read_cluster(path)
    (job,) = read_trace(write(tmp_path, {**GOOD, "node_devices": 4}), cluster=cluster)
    assert (cluster.nodes, job.node_devices) == (3, 4)
    for size in (8, 2, None):
        with pytest.raises(PlexError, match="of that size"):
            read_trace(write(tmp_path, {**GOOD, "node_devices": size}), cluster=cluster)


def test_a_cluster_file_takes_only_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    for text, field in (
        ('{"devices_per_node": 8}', "nodes"),
        ('{"nodes": 0}', "nodes"),
        ('{"nodes": 2.5}', "nodes"),
        ('{"nodes": []}', "nodes"),
        ('{"nodes": [{"count": 2}]}', "nodes[0].devices"),
        ('{"nodes": [{"count": 2, "devices": 0}]}', "nodes[0].devices"),
        ('{"nodes": [{"count": 2, "devices": 4}], "devices_per_node": 8}', "devices_per_node"),
        ('{"nodes": 1e12}', "nodes"),
        ('{"nodes": 4, "switch": {"link_gb_s": 0}}', "switch.link_gb_s"),
        ('{"nodes": 4, "switch": {"disk_gb_s": 0}}', "switch.disk_gb_s"),
        ('{"nodes": 4, "nodes_per_host": 0}', "nodes_per_host"),
        ('{"nodes": 4, "target_slowdown": 0.9}', "target_slowdown"),
        ('{"nodes": 4, "faults": {"slow_switch_share": 2}}', "faults.slow_switch_share"),
        ('{"nodes": 4, "faults": {"node_mtbf_h": 1e-9}}', "faults.node_mtbf_h"),
        ('{"nodes": 4, "faults": {"repair_s": 1e15}}', "faults.repair_s"),
        ('{"nodes": 4, "gpu": 1}', "gpu"),
        ('{"nodes": 4, "faults": {"mtbf": 1}}', "faults.mtbf"),
        ('{"nodes": 4, "events": {}}', "events"),
        ('{"nodes": 4, "events": [{"at_s": 1}]}', "events[0]"),
        ('{"nodes": 4, "events": [{"at_s": -1, "drain": "n00000"}]}', "events[0].at_s"),
        ('{"nodes": 4, "events": [{"at_s": 1, "drain": "n00004"}]}', "events[0].drain"),
        ('{"nodes": 4, "events": [{"at_s": 1, "lose": "n00000"}]}', "events[0].lose"),
    ):
        path.write_text(text)
        with pytest.raises(PlexError, match=re.escape(f"field {field}: found ")):
            read_cluster(path)


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
