"""What jobs ask for at scale, of a service with its default limits; only its engines are fake."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import plexclient as plex
from plexclient.ids import new_operation_id
from plexclient.wire import channels
from plexclient.wire.v1 import operations_pb2, service_pb2_grpc
from plexsvc.rollout.store import TOKEN_BYTES
from tests.rigs.inner_cluster import InnerCluster, node
from tests.rigs.long_answers import make_long_model, start_with_fake_engines
from tests.rigs.processes import managers

pytestmark = [pytest.mark.process, pytest.mark.slow]

LENGTH = 14_000
SAMPLES = 1024
SESSIONS = 2048
FEWER = 8
"""How many times fewer there are without `--search`."""
TURN = LENGTH * SAMPLES // SESSIONS
"""Tokens of a turn: as many in all as of the generate."""
MANAGER_BYTES = 256 << 20
"""What a manager takes beside token records."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerCluster]:
    nodes = (node("node-a", rollout=8),)
    with start_with_fake_engines(tmp_path_factory.mktemp("many"), nodes=nodes) as inner:
        yield inner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_long_model(tmp_path_factory.mktemp("models"))


@pytest.mark.every(1)
def test_1024_samples_of_14000_tokens_are_one_generate(
    cluster: InnerCluster, model: Path, every: Callable[[int], int]
) -> None:
    count = SAMPLES // every(FEWER)
    with cluster.connect() as connection, connection.job("long") as job:
        rollout = job.deploy(
            "rollout", model=model, backend="vllm", instances=4, max_model_len=LENGTH + 2048
        )
        prompts = [[3, prompt % 50] * 512 for prompt in range(count // 8)]
        lengths = [
            len(sample.tokens)
            for sample in rollout.generate.stream(
                prompts, n=8, max_tokens=LENGTH, temperature=1.0, ignore_eos=True
            )
        ]
        assert lengths == [LENGTH] * count
        assert manager_peak_bytes(cluster) < MANAGER_BYTES + count * LENGTH * TOKEN_BYTES


@pytest.mark.every(1)
def test_2048_sessions_have_a_turn_each_at_once(
    cluster: InnerCluster, model: Path, every: Callable[[int], int]
) -> None:
    count = SESSIONS // every(FEWER)
    with cluster.connect() as connection, connection.job("agents") as job:
        rollout = job.deploy(
            "rollout", model=model, backend="vllm", instances=4, max_model_len=LENGTH + 2048
        )

        def turn(number: int) -> operations_pb2.Operation:
            return operations_pb2.Operation(
                operation_id=new_operation_id(),
                job_id=job.job_id,
                deployment_id=rollout.deployment_id,
                generate=operations_pb2.Generate(
                    prompts=[operations_pb2.Prompt(token_ids=[3])],
                    sampling=operations_pb2.SamplingParams(n=1, max_tokens=TURN),
                    session=f"session {number}",
                ),
            )

        with grpc.insecure_channel(cluster.address, options=channels.LIMITS) as channel:
            ask = service_pb2_grpc.RouterStub(channel).Sample
            token = (("authorization", f"Bearer {cluster.token}"),)
            turns = [ask(turn(i), timeout=300, metadata=token) for i in range(count)]
            for one in turns:
                assert next(one).prompts, "it was taken"
            rollout.generate([[3, 4]] * 8, max_tokens=1)  # now the engines go on
            assert [tokens_of(one) for one in turns] == [TURN] * count
        options = plex.SamplingOptions(max_tokens=30, temperature=1.0, ignore_eos=True)
        again = [rollout.session().generate.submit([3], **options) for _ in range(count)]
        assert [len(one.result(120).tokens) for one in again] == [30] * count
        assert manager_peak_bytes(cluster) < MANAGER_BYTES + count * TURN * TOKEN_BYTES


def manager_peak_bytes(cluster: InnerCluster) -> int:
    """Return the most memory that the cluster's manager took; other tests' clusters may be up."""
    (agent,) = cluster.agents("node-a")
    (pid,) = managers(below=agent)
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kib) << 10


def tokens_of(turn: Iterator[operations_pb2.GenerateFrame]) -> int:
    """Return how many tokens a turn got."""
    return sum(len(delta.token_ids) for frame in turn for delta in frame.deltas)
