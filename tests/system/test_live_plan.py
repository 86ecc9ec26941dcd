"""Five jobs on three node groups while one node is drained and another joins, and their journal.

Replayed it gives the same actions, and a wall time that a simulation predicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from opentelemetry.sdk.trace import TracerProvider
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.driver.journal import NOTE_EVERY
from plexsvc.sim.predict import predict
from plexsvc.sim.replay import verify
from plexsvc.store.reader import read_journal
from tests.rigs.another_node import another_node
from tests.rigs.live_cluster import TRAIN, LiveCluster, start_cluster
from tests.rigs.live_jobs import PacedJob, run_together
from tests.rigs.waiting import wait_until
from tests.system.test_operating import plexctl, states

pytestmark = [pytest.mark.process, pytest.mark.slow]

JOBS = [
    PacedJob(name=f"job-{at}", seed=at, cycles=20 - at, gap_s=0.3 + 0.1 * at, start_s=0.1 * at)
    for at in range(5)
]
SAME_SIZE = 0.25
"""Loose, for other work may slow a part of a test; `benchmarks/live_replay.py` has the figure."""
OPERATOR = 'tokens = { "token-of-ops" = "ops" }\n'


def change_nodes(cluster: LiveCluster, address: str) -> None:
    """Take a node in and another out while the jobs run."""
    wait_until(lambda: len(residents(cluster)) == len(JOBS), what="all jobs are placed")
    assert len(set(residents(cluster).values())) == 3
    assert plexctl(cluster, "node", "add", address)["state"] == "up"
    plexctl(cluster, "node", "drain", "node-b", "--wait")
    assert states(cluster)["node-b"] == "drained"
    assert "node-b" not in residents(cluster).values()


def residents(cluster: LiveCluster) -> dict[str, str]:
    """Return the node of each deployment that is placed."""
    nodes = plexctl(cluster, "node", "list")["nodes"]
    return {r["deployment_id"]: node["node_id"] for node in nodes for r in node["residents"]}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[LiveCluster]:
    """The five jobs have run, and the nodes have changed; the service still runs."""
    folder = tmp_path_factory.mktemp("planned")
    nodes = {f"node-{name}": [TRAIN] for name in "abc"}
    with (
        start_cluster(folder, nodes=nodes, extra=OPERATOR) as started,
        another_node(
            started, tmp_path_factory.mktemp("node-d"), node_id="node-d", device=TRAIN
        ) as address,
        ThreadPoolExecutor(1) as pool,
    ):
        cycles = pool.submit(run_together, started, JOBS, model=tiny_model)
        change_nodes(started, address)
        assert cycles.result(120) == [job.cycles for job in JOBS]
        switches = sum(device.switches for device in started.status().devices)
        assert switches > 0, "the jobs did not share"
        yield started


@pytest.fixture(scope="module")
def database(live: LiveCluster) -> Path:
    return live.state_dir / "plexsvc.db"


def test_a_live_journal_replays_to_the_identical_actions(database: Path) -> None:
    verdict = verify(journal.read(read_journal(str(database)).rows))
    assert verdict.difference is None
    assert verdict.compared >= verdict.events - 2 * NOTE_EVERY  # the last ones are told later
    operations = sum(job.cycles * (job.passes + 1) for job in JOBS)
    assert verdict.events > 2 * operations


def test_its_wall_time_is_predicted_from_its_first_half(database: Path) -> None:
    found = predict(journal.read(read_journal(str(database)).rows))
    assert found.is_complete
    assert len(found.jobs) == len(JOBS)
    assert abs(found.run.error) < SAME_SIZE


def test_the_command_tells_both_of_a_running_service(database: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["replay", str(database), "--predict", "--json", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["is_identical"]
    lines = (tmp_path / "jobs.jsonl").read_text().splitlines()
    assert {json.loads(line)["job_id"] for line in lines} == set(told["predicted"]["jobs"])


def _value(span: Span, key: str) -> str:
    return next((a.value.string_value for a in span.attributes if a.key == key), "")


def test_each_operation_has_a_span_in_the_trace_of_its_caller(
    live: LiveCluster, database: Path, tiny_model: Path, tmp_path: Path
) -> None:
    tracer = TracerProvider().get_tracer("the user's")
    with live.connect() as cluster, cluster.job("traced") as job:
        actor = job.deploy("actor", model=str(tiny_model), backend="megatron")
        with tracer.start_as_current_span("epoch") as span:
            actor.noop()
        caller = span.get_span_context()
        actor.noop()
    out = tmp_path / "spans.jsonl"
    arguments = ["traces", str(database), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    requests = [json_format.Parse(line, TracesData()) for line in out.read_text().splitlines()]
    spans = [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    noops = [span for span in spans if _value(span, "plex.job") == "traced" and span.name == "noop"]
    assert sorted(int.from_bytes(span.parent_span_id) for span in noops) == [0, caller.span_id]
    assert caller.trace_id in {int.from_bytes(span.trace_id) for span in noops}
    parts = {span.name for span in spans if span.parent_span_id == noops[0].span_id}
    assert {"execute"} <= parts <= {"queue", "execute"}
    # A part lies inside its operation, and steps are there as often as they were.
    for paced in JOBS:
        roots = [span for span in spans if _value(span, "plex.job") == paced.name]
        assert sum(span.name == "step" for span in roots) == paced.cycles
    whole = {span.span_id: span for span in spans if not span.parent_span_id}
    for part in spans:
        if part.parent_span_id in whole:
            root = whole[part.parent_span_id]
            assert root.start_time_unix_nano <= part.start_time_unix_nano
            assert part.end_time_unix_nano <= root.end_time_unix_nano
    assert any(span.name == "switch" for span in spans)
