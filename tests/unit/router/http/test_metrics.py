"""Metrics: answers become series, bounded in number; calls and operations are counted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from plexclient.wire.v1 import reward_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.http import metrics
from plexsvc.router.http.metrics import Meter, render

PROMETHEUS = Path(__file__).parents[4] / "deploy" / "prometheus"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(text: bytes) -> Series:
    """Return the value of every series, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def node(name: str, *, devices: int) -> pb.NodeView:
    made = [
        pb.DeviceStatus(node_id=name, index=i, kind="train", busy_us=1_500_000, bytes_total=8)
        for i in range(devices)
    ]
    return pb.NodeView(
        node_id=name,
        state="up",
        host_bytes_total=64,
        devices=made,
        processes={"ready": 2},
        state_manager_restarts=1,
        lease_age_us=4_500_000,
    )


def test_answers_are_shown_as_seconds_bytes_and_counts() -> None:
    running, done = pb.JOB_STATE_RUNNING, pb.JOB_STATE_COMPLETED
    answers = {
        "ListNodes": pb.ListNodesReply(nodes=[node("a", devices=2), node("b", devices=1)]),
        "GetPack": pb.PackReply(
            now_us=9_000_000,
            waiting=[
                pb.PackWaiting(tenant="lab", since_us=at, short_of="devices")
                for at in (4_000_000, 8_000_000)
            ],
            demand=[pb.KindDemand(kind="train", idle=1, wanted={"devices": 4}, missing=3)],
        ),
        "GetReport": pb.ReportReply(
            tenants=[pb.TenantUse(tenant="lab", pooled_us=2_000_000, cost=0.5)],
            jobs=[
                pb.JobUse(job_id="job-1", tenant="lab", state=running, measured_ppm=1_100_000),
                pb.JobUse(job_id="job-0", tenant="lab", state=done, device_us=1),
            ],
        ),
        "ListInstances": pb.ListInstancesReply(
            instances=[pb.InstanceView(device="a:1", kind="spot", phase="serving", running=3)]
        ),
        "GetRewards": reward_pb2.RewardsReply(
            pools=[reward_pb2.RewardPool(name="cpu", queued=7, busy=2)]
        ),
    }
    found = series(render(Meter(), answers))
    at = {"node": "a", "index": "1", "kind": "train"}
    assert value(found, "plex_device_busy_seconds_total", **at) == 1.5
    assert value(found, "plex_device_bytes", **at) == 8
    assert value(found, "plex_nodes", state="up") == 2
    assert value(found, "plex_node_lease_age_seconds", node="a") == 4.5
    assert value(found, "plex_node_state_manager_restarts_total", node="a") == 1
    assert value(found, "plex_node_processes", node="a", state="ready") == 2
    assert value(found, "plex_node_processes", node="a", state="starting") == 0
    assert value(found, "plex_waiting_deployments", tenant="lab", reason="devices") == 2
    assert value(found, "plex_wanted_devices", kind="train", reason="devices") == 4
    assert value(found, "plex_missing_devices", kind="train") == 3
    assert value(found, "plex_oldest_wait_seconds", tenant="lab") == 5
    assert value(found, "plex_jobs", tenant="lab", state="running") == 1
    assert value(found, "plex_job_slowdown_ratio", tenant="lab", job="job-1") == 1.1
    assert value(found, "plex_pool_cost_total", tenant="lab") == 0.5
    assert value(found, "plex_rollout_instances", kind="spot", phase="serving") == 1
    assert value(found, "plex_rollout_samples", device="a:1", kind="spot", state="running") == 3
    assert value(found, "plex_reward_workers", pool="cpu", state="busy") == 2
    assert not any(("job", "job-0") in labels for _, labels in found), "it has ended"
    assert all(value(found, "plex_up", method=name) == 1 for name in metrics.ASKED)


def test_a_part_that_does_not_answer_is_shown_as_down() -> None:
    found = series(render(Meter(), {"ListNodes": pb.ListNodesReply()}))
    assert value(found, "plex_up", method="ListNodes") == 1
    assert value(found, "plex_up", method="GetRewards") == 0


def test_a_scrape_is_bounded_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SERIES", 20)
    answer = pb.ListNodesReply(nodes=[node("a", devices=100)])
    found = series(render(Meter(), {"ListNodes": answer}))
    shown = [name for name, _ in found if name.startswith(("plex_node", "plex_device"))]
    left_out = value(found, "plex_series_left_out")
    assert len(shown) + left_out == 607
    assert len(shown) == 20 - len(metrics.ASKED)


def test_alerts_and_panels_name_metrics_that_there_are() -> None:
    meter = Meter()
    meter.answered("step", "worker_died", took_us=1)
    with meter.calling("ListJobs"):
        pass
    there = {name for name, _ in series(render(meter, {}))} | set(metrics.HELP)
    panels = json.loads((PROMETHEUS / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += re.findall(r"expr: (.+)", (PROMETHEUS / "alerts.yml").read_text())
    assert len(asked) > 20
    assert {name for one in asked for name in re.findall(r"plex_\w+", one)} <= there


def test_calls_and_operations_are_counted_by_kind_and_code() -> None:
    meter = Meter()
    with meter.calling("ListJobs"):
        pass
    with pytest.raises(PlexError), meter.calling("ListJobs"):
        raise PlexError(ErrorCode.QUEUE_FULL, "no")
    meter.answered("step", "", took_us=20_000)
    meter.answered("step", "worker_died", took_us=20_000)
    found = series(render(meter, {}))
    assert value(found, "plex_calls_total", method="ListJobs", code="") == 1
    assert value(found, "plex_calls_total", method="ListJobs", code="queue_full") == 1
    assert value(found, "plex_operation_seconds_count", op="step") == 2
    assert value(found, "plex_operation_seconds_bucket", op="step", le="0.03") == 2
    assert value(found, "plex_operation_errors_total", op="step", code="worker_died") == 1
