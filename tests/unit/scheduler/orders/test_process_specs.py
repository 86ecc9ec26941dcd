"""A rank is started with what its deployment's client asked."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plexclient.specs import AdamW, Parallel
from plexclient.wire.v1 import node_pb2, service_pb2
from plexsvc.errors import PlexError
from plexsvc.ids import DeploymentId, JobId, NodeId, TenantId, WpgId, new_operation_id
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, WpgRecord
from plexsvc.scheduler.orders.process_specs import proc_spec, rendezvous_of
from plexsvc.worker import config as worker_config

HOST = node_pb2.NodeDescription(node_id="n0", data_socket="", runtime_dir="/run", hostname="n0")


def process_of(
    spec: service_pb2.DeploymentSpec,
    *,
    host: node_pb2.NodeDescription = HOST,
    config: SchedulerConfig | None = None,
) -> node_pb2.ProcSpec:
    deployment = DeploymentRecord(
        deployment_id=DeploymentId("j/actor"),
        job_id=JobId("j"),
        tenant=TenantId("lab"),
        name="actor",
        spec=spec,
        initialize_id=new_operation_id(),
        vocab_size=0,
        max_sequence_length=0,
        model_files=(),
    )
    wpg = WpgRecord(
        wpg_id=WpgId("wpg_1"),
        deployment=deployment,
        incarnation=1,
        places=(Place(node_id=NodeId("n0"), device=0),),
    )
    return proc_spec(
        wpg,
        rank=0,
        host=host,
        rendezvous="",
        epoch=1,
        device_bytes=1 << 30,
        config=config or SchedulerConfig(),
    )


def config_of_rank(spec: service_pb2.DeploymentSpec) -> worker_config.WorkerConfig:
    return worker_config.parse(json.loads(process_of(spec).config_json))


@pytest.mark.parametrize(
    "asked", [AdamW(), AdamW(lr=0.5, beta2=0.95, decay_vectors=True), AdamW(on="host")]
)
def test_the_optimizer_that_a_user_asks_for_is_the_one_that_steps(asked: AdamW) -> None:
    spec = service_pb2.DeploymentSpec(role="actor", backend="fsdp", optimizer=asked.to_wire())
    assert config_of_rank(spec).optimizer == asked


def test_a_deployment_without_an_optimizer_has_ranks_without() -> None:
    spec = service_pb2.DeploymentSpec(
        role="reference", backend="fsdp", parallel=Parallel(dp=2).to_wire()
    )
    found = config_of_rank(spec)
    assert found.optimizer is None
    assert found.parallel == Parallel(dp=2)


def test_rollouts_share_an_engine_whose_adapters_and_model_are_alike() -> None:
    def rollout(**changes: Any) -> service_pb2.DeploymentSpec:
        given = {"model": "/m", "lora": service_pb2.LoRA(rank=4, alpha=1), **changes}
        return service_pb2.DeploymentSpec(role="rollout", backend="vllm", dtype="float32", **given)

    def shares(spec: service_pb2.DeploymentSpec, *, kind: str = "rollout", **config: Any) -> str:
        host = node_pb2.NodeDescription(devices=[node_pb2.DeviceDescription(index=0, kind=kind)])
        return process_of(
            spec, host=host, config=SchedulerConfig(**{"adapter_bytes": 1, **config})
        ).shares

    common = shares(rollout())
    assert common == shares(rollout(lora=service_pb2.LoRA(rank=8, alpha=32))) != ""
    for other in (
        rollout(model="/other"),
        rollout(model_root="/tenant"),
        rollout(lora=service_pb2.LoRA(rank=9, alpha=1)),
        rollout(kv_cache_bytes=1 << 20),
    ):
        assert shares(other) not in {common, ""}
    for alone in (rollout(lora=None), rollout(shares_devices=True)):
        assert shares(alone) == ""
    assert shares(rollout(), kind="spot") == "", "a spot device is one deployment's"
    assert shares(rollout(), kind="rollout-tp2") == "", "each tensor rank merges its part"
    assert shares(rollout(), adapter_bytes=0) == "", "an operator had it so"


def hosts(*names: str) -> list[node_pb2.NodeDescription]:
    return [
        node_pb2.NodeDescription(node_id=f"n{i}", data_socket="", runtime_dir="/run", hostname=name)
        for i, name in enumerate(names)
    ]


def test_ranks_meet_in_a_file_of_their_host_or_at_the_address_of_rank_0() -> None:
    wpg = cast("WpgRecord", SimpleNamespace(wpg_id="wpg-3-40", incarnation=2))
    assert rendezvous_of(wpg, hosts("", "")) == "file:///run/wpg-3-40-2.rdzv"
    assert rendezvous_of(wpg, hosts("10.0.0.7")) == "file:///run/wpg-3-40-2.rdzv"
    assert rendezvous_of(wpg, hosts("10.0.0.7", "10.0.0.8")) == "tcp://10.0.0.7:27549"


@pytest.mark.parametrize("epoch", [1, 2, 5_000])
def test_no_two_of_ten_thousand_meet_at_one_port(epoch: int) -> None:
    wpgs = [SimpleNamespace(wpg_id=f"wpg-{epoch}-{no}", incarnation=1) for no in range(1, 10_001)]
    met = {rendezvous_of(cast("WpgRecord", wpg), hosts("a", "b")) for wpg in wpgs}
    assert len(met) == len(wpgs)
    assert all(20_000 <= int(place.rpartition(":")[2]) < 30_000 for place in met)


def test_ranks_of_several_hosts_need_an_address_of_each() -> None:
    wpg = cast("WpgRecord", SimpleNamespace(wpg_id="wpg-1-1", incarnation=2))
    with pytest.raises(PlexError, match="n1 listens on Unix sockets alone"):
        rendezvous_of(wpg, hosts("10.0.0.7", ""))
