"""What is wrong with a node is found by name, and one without fault is said to fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexclient.wire.v1 import node_pb2
from plexsvc.cluster.doctor import GIB, Grade
from plexsvc.cluster.rounds import MAX_SKEW_US, AgentReply, judge

NOW_US = 1_000_000_000_000
VERSIONS = {"plexsvc": "1.0", "torch": "2.13.0"}
OWN = {"/models": node_pb2.RootFound(path="/models", models={"a": "0a", "b": "0b"})}


def answer(**differing: object) -> AgentReply:
    """Return what an agent without fault answers, but for these."""
    found = node_pb2.Examination(
        versions=VERSIONS,
        wall_us=NOW_US,
        roots=OWN.values(),
        free_bytes={"/run": 20 * GIB},
    )
    for name in differing:
        found.ClearField(name)
    found.MergeFrom(node_pb2.Examination(**differing))  # type: ignore[arg-type]
    return AgentReply(found=found, asked_us=NOW_US - 500, answered_us=NOW_US + 500)


def findings(given: AgentReply) -> list[tuple[Grade, str]]:
    return [(one.grade, one.found) for one in judge("b", given, versions=VERSIONS, own=OWN)]


def test_a_node_without_fault_fits() -> None:
    said = "plexsvc 1.0, torch 2.13.0; 2 models as here; 20.0 GiB of disk free"
    assert findings(answer()) == [(Grade.OK, said)]


@pytest.mark.parametrize(
    ("fault", "grade", "found"),
    [
        (
            {"versions": {"plexsvc": "0.9", "torch": "2.13.0"}},
            Grade.FAILED,
            "has plexsvc 0.9, the service 1.0",
        ),
        (
            {"versions": {"plexsvc": "1.0"}},
            Grade.FAILED,
            "has torch not at all, the service 2.13.0",
        ),
        ({"unreached": ["10.0.0.2:7"]}, Grade.FAILED, "does not reach 10.0.0.2:7"),
        (
            {"roots": [node_pb2.RootFound(path="/models", problem="No such file")]},
            Grade.FAILED,
            "cannot read /models: No such file",
        ),
        (
            {"roots": [node_pb2.RootFound(path="/models", models={"a": "0a", "b": "99"})]},
            Grade.FAILED,
            "has another b in /models than the service",
        ),
        (
            {"roots": [node_pb2.RootFound(path="/models", models={"c": "0c"})]},
            Grade.FAILED,
            "has another a in /models than the service, and 2 more",
        ),
        ({"free_bytes": {"/run": 2 * GIB}}, Grade.LIMITED, "2.0 GiB free below /run"),
        ({"free_bytes": {"/run": GIB // 2}}, Grade.FAILED, "0.5 GiB free below /run"),
    ],
)
def test_each_fault_is_named(fault: dict[str, object], grade: Grade, found: str) -> None:
    assert findings(answer(**fault)) == [(grade, found)]


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_clock_is_judged_beyond_the_time_that_the_call_took(sign: int) -> None:
    late = answer(wall_us=NOW_US + sign * (MAX_SKEW_US + 600))
    assert findings(late) == [(Grade.LIMITED, "its clock is 1.0 s from the service's")]
    slow = replace(late, asked_us=NOW_US - 10**7, answered_us=NOW_US + 10**7)
    assert [grade for grade, _ in findings(slow)] == [Grade.OK]
