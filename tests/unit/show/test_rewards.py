"""What people read of the reward service."""

from __future__ import annotations

from rich.console import Console

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.show.rewards import batches_view, explained, programs_view

BATCH = pb.RewardBatch(
    tenant="acme",
    job_id="job-1",
    batch_id=b"\x1f" * 16,
    program="math",
    size=8,
    queued=3,
    running=1,
    answered=4,
    since_us=2_000_000,
    expected_us=5_000_000,
    critical="sample 7 runs in stage compare since 1.0 s",
)
REPLY = pb.RewardsReply(
    programs=[
        pb.RewardProgram(
            name="code_cpp",
            text="the share of tests",
            timeout_score=-1,
            stages=[
                pb.RewardStage(name="compile", timeout_us=60_000_000, is_sandboxed=True),
                pb.RewardStage(name="run", timeout_us=30_000_000, is_sandboxed=True),
            ],
        )
    ],
    pools=[
        pb.RewardPool(name="cpu=1,mem=1GiB", queued=3, busy=1, limit=2),
        pb.RewardPool(name="cpu=2,mem=2GiB", planned=7, held=5, limit=7, is_unmet=True),
    ],
    batches=[BATCH],
    sandbox="namespaces",
)


def printed(view: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_programs_are_shown_with_each_stage_and_the_sandbox() -> None:
    text = printed(programs_view(REPLY))
    assert "code_cpp" in text
    assert "60 s" in text
    assert "sandbox: namespaces" in text


def test_batches_are_shown_with_what_is_left() -> None:
    text = printed(batches_view(REPLY))
    assert "4 / 8" in text
    assert "+3.0 s" in text


def test_the_plan_of_each_pool_is_shown_beside_its_use() -> None:
    text = printed(batches_view(REPLY))
    assert "follows its queue" in text
    assert "7, too few" in text


def test_a_batch_says_what_it_waits_for() -> None:
    assert explained(BATCH) == (
        "4 of 8 samples are scored by math; the batch was expected to end in 3.0 s. "
        "It waits for sample 7 runs in stage compare since 1.0 s"
    )
