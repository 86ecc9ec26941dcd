"""The report's tables: tenants, the matrix of waits, jobs; nodes with who lives there."""

from __future__ import annotations

from rich.console import Console, RenderableType

from plexclient.ids import show
from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.show.nodes import nodes_view
from plexsvc.show.report import cost_csv, cost_view, report_view, tenants_view


def words(view: RenderableType) -> list[list[str]]:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(view)
    return [line.split() for line in capture.get().splitlines()]


def test_rows_waited_for_columns_and_the_others_are_one() -> None:
    report = pb.ReportReply(
        now_us=9_000_000,
        tenants=[
            pb.TenantUse(
                tenant="lab",
                jobs=2,
                device_us=4_000_000,
                wait_us=1_500_000,
                switches=3,
                pooled_us=1_800_000_000,
                cost=1.33,
            ),
            pb.TenantUse(tenant="", jobs=1),
        ],
        matrix=[pb.Interference(waiting="lab", blocking="", wait_us=1_500_000)],
        jobs=[
            pb.JobUse(
                job_id="job-1",
                name="math",
                tenant="lab",
                wait_us=1_500_000,
                wait_ratio_ppm=170_000,
                predicted_ppm=1_040_000,
                waits=[pb.JobWait(wait_us=1_200_000)],
            )
        ],
    )
    lines = words(report_view(report))
    assert ["lab", "2", "4.0", "1.5", "3", "0.00", "0.50", "1.33"] in lines
    assert ["others", "1", "0.0", "0.0", "0", "0.00", "0.00", "0.00"] in lines
    assert ["waited", "s", "for", "lab", "others"] in lines
    assert ["lab", "-", "1.50"] in lines
    assert ["others", "-", "-"] in lines
    job = next(line for line in lines if line[:1] == ["job-1"])
    assert job[1:11] == [*("math", "0.0", "1.5", "17%", "0", "1.04", "/", "-", "≤", "-")]
    assert job[11:] == ["0.00", "0.00", "another", "tenant's", "job", "1.2", "s"]


def test_a_tenant_shows_its_share_and_what_it_waits_for() -> None:
    report = pb.ReportReply(
        tenants=[
            pb.TenantUse(
                tenant="lab", jobs=2, weight=3, share_ppm=425_000, waiting=7, max_priority=5
            ),
            pb.TenantUse(jobs=1),
        ]
    )
    lines = words(tenants_view(report))
    assert ["lab", "3", "42.5%", "2", "7", "0.0", "5"] in lines
    assert ["others", "-", "-", "1", "-", "0.0", "-"] in lines


def test_a_node_shows_its_devices_and_what_becomes_of_who_lives_there() -> None:
    node = pb.NodeView(
        node_id="node-b",
        state="draining",
        reason="2 still here",
        address=pb.NodeAddress(agent="h:1"),
        devices=[pb.DeviceStatus(kind="train"), pb.DeviceStatus(kind="train")],
        residents=[
            pb.NodeResident(
                deployment_id="job-1/actor",
                role="actor",
                devices=["node-b:0"],
                residency=common_pb2.RESIDENCY_HOST,
                next="moves to node-c:0 (spawning)",
            ),
            pb.NodeResident(role="rollout", devices=["node-b:1"], next="stays"),
        ],
    )
    lines = words(nodes_view([node]))
    assert [*("node-b", "draining", "2", "train", "0.00", "/", "0.00", "-", "h:1")] == lines[1][:9]
    assert lines[1][9:] == ["2", "still", "here"]
    moving, hidden = lines[4], lines[5]
    assert moving[:2] == ["node-b:0", "job-1/actor"]
    assert moving[-5:] == ["host", "moves", "to", "node-c:0", "(spawning)"]
    assert hidden[1:3] == ["another", "tenant's"]


def test_a_node_with_a_disk_shows_what_is_parked_there() -> None:
    gib = 1 << 30
    parked = pb.NodeResident(
        deployment_id="job-1/actor", residency=common_pb2.RESIDENCY_HOST, disk_bytes=gib // 2
    )
    node = pb.NodeView(
        node_id="node-b",
        disk_bytes_used=gib // 2,
        disk_bytes_total=4 * gib,
        sunk_bytes=3 * gib,
        risen_bytes=2 * gib,
        residents=[parked],
    )
    lines = words(nodes_view([node]))
    assert "0.50 / 4.00 (3.00 out, 2.00 back)" in " ".join(lines[1])
    assert "host, 0.50 GiB on disk" in " ".join(lines[4])


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


def test_operations_have_a_row_each_and_the_rest_another() -> None:
    one = pb.Cost(kind="step", operation_id=b"op", deployment_id="job-1/actor", seq=7, count=1)
    reply = pb.CostReply(costs=[one, *REPLY.costs])
    rows = [[word for word in line if word != "│"] for line in words(cost_view(reply))]
    figures = ["step", "1", "0.0", "0.00", "0", "0.00", "0.00"]
    assert [show(b"op"), "job-1/actor", "7", *figures] in rows
    assert ["others", "step", "3", "1.5", "0.00", "9", "0.50", "0.00"] in rows
    lines = cost_csv(reply).splitlines()
    assert lines[0].endswith(",operation_id,deployment_id,seq,at_us")
    assert lines[1].endswith(f",{show(b'op')},job-1/actor,7,0")
    assert lines[2].endswith(",,,0,0")
