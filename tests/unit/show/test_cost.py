"""The bill's table has a row for each job and kind of work and the sum; CSV has every figure."""

from __future__ import annotations

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.show.cost import cost_csv, cost_view
from tests.unit.show.test_report import words

REPLY = pb.CostReply(
    costs=[
        pb.Cost(
            owner="lab",
            job_id="job-1",
            job_name="math",
            kind="step",
            count=3,
            device_us=1_500_000,
            tokens=9,
            nbytes=1 << 29,
        ),
        pb.Cost(owner="lab", job_id="job-1", job_name="math", kind="switch_in", switch_us=20_000),
    ]
)


def test_each_kind_of_work_has_a_row_and_the_last_one_is_the_sum() -> None:
    table = words(cost_view(REPLY))
    rows = [[word for word in line if word != "│"] for line in table]
    assert ["lab", "job-1", "math", "step", "3", "1.5", "0.00", "9", "0.50", "0.00"] in rows
    assert ["all", "3", "1.5", "0.02", "9", "0.50", "0.00"] in rows


def test_csv_has_whole_numbers() -> None:
    lines = cost_csv(REPLY).splitlines()
    assert lines[0].startswith("owner,job_id,job_name,kind,count,device_us")
    assert lines[1] == "lab,job-1,math,step,3,1500000,0,9,536870912,0"
    assert lines[2] == "lab,job-1,math,switch_in,0,0,20000,0,0,0"
