"""Prometheus metrics of the cluster, at `/metrics`, for tokens of an operator's tenant.

A scrape asks the scheduler and the reward service what `plexctl pack`, `node list`, `report` and
their kind ask, and shows the answers. Calls and operations are counted here, by each router for
itself. Nothing is kept between scrapes, and the text is made on a thread.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import prometheus_client
from aiohttp import web
from google.protobuf.message import Message
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from plexclient.wire.v1 import reward_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.auth import Caller, Tenants
from plexsvc.router.http.server import CALLER, Ask

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

MAX_SERIES: Final = 20_000
"""Most series of one scrape; what comes beyond is counted in `plex_series_left_out`."""

ASKED: Final[Mapping[str, type[Message]]] = {
    "GetPack": pb.PackRequest,
    "ListNodes": pb.ListNodesRequest,
    "ListInstances": pb.ListInstancesRequest,
    "GetReport": pb.ReportRequest,
    "GetRewards": reward_pb2.GetRewardsRequest,
}
"""What a scrape asks, by method."""

LIVING: Final = {pb.JOB_STATE_QUEUED: "queued", pb.JOB_STATE_RUNNING: "running"}

HELP: Final = {
    "plex_up": "whether the part that answers this method did",
    "plex_series_left_out": "series beyond the bound of a scrape",
    "plex_nodes": "nodes by state",
    "plex_node_host_bytes": "host memory of a node",
    "plex_node_host_used_bytes": "host memory of a node that state, versions and staging hold",
    "plex_node_lease_age_seconds": "time since the renewal that a node's agent answered last",
    "plex_node_state_manager_restarts_total": "restarts of a node's state manager by its agent",
    "plex_node_processes": "processes of jobs on a node, by state",
    "plex_device_busy_seconds_total": "time in which operations held a device",
    "plex_device_switch_seconds_total": "time in which a device changed between jobs",
    "plex_device_switches_total": "changes between jobs",
    "plex_device_bytes": "memory of a device",
    "plex_device_used_bytes": "memory of a device that residents hold",
    "plex_device_residents": "WPGs that share a device",
    "plex_jobs": "jobs that have not ended, by state",
    "plex_job_device_seconds_total": "time in which a job's operations held devices",
    "plex_job_wait_seconds_total": "time for which a job waited for devices that others held",
    "plex_job_switch_seconds_total": "time that switches to a job took",
    "plex_job_slowdown_ratio": "cycle of a job against the same job alone: measured",
    "plex_job_slowdown_predicted_ratio": "the same as it was predicted when the job was placed",
    "plex_job_slowdown_bound_ratio": "the most that the job accepts",
    "plex_waiting_deployments": "deployments that wait for devices, by what they are short of",
    "plex_wanted_devices": "devices of what waits, by what it is short of",
    "plex_missing_devices": "devices that would have to be added for what waits",
    "plex_oldest_wait_seconds": "for how long the first of them waits",
    "plex_pool_seconds_total": "time of spot devices and lent engines that a tenant had",
    "plex_pool_cost_total": "what that cost, by the prices of the instances",
    "plex_rollout_instances": "rollout instances by kind and phase",
    "plex_rollout_samples": "samples at rollout instances, running and pending",
    "plex_rollout_tokens_per_second": "tokens that rollout instances make",
    "plex_reward_workers": "workers of a reward pool by what they do",
    "plex_reward_queued_samples": "samples that wait for a reward pool",
}
"""Every metric that is made of answers, and what it says."""


class Meter:
    """What this router counts of calls and operations."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._calls = prometheus_client.Counter(
            "plex_calls",
            "calls of clients by method and error code",
            ["method", "code"],
            registry=self.registry,
        )
        self._operations = prometheus_client.Histogram(
            "plex_operation_seconds",
            "time from an operation's arrival here to its answer",
            ["op"],
            registry=self.registry,
            buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
        )
        self._failed = prometheus_client.Counter(
            "plex_operation_errors",
            "operations answered with an error, by kind and code",
            ["op", "code"],
            registry=self.registry,
        )

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Count a call, and how it ends."""
        try:
            yield
        except PlexError as error:
            self._calls.labels(method, str(error.code)).inc()
            raise
        except BaseException:
            self._calls.labels(method, "left").inc()
            raise
        self._calls.labels(method, "").inc()

    def answered(self, kind: str, code: str, *, took_us: int) -> None:
        """Count an operation that was answered, with an error code or ""."""
        self._operations.labels(kind).observe(took_us / 1e6)
        if code:
            self._failed.labels(kind, code).inc()


def routes(meter: Meter, tenants: Tenants, ask: Ask) -> list[web.RouteDef]:
    """Return the route."""

    async def scrape(request: web.Request) -> web.Response:
        caller = request[CALLER]
        if not tenants.may_see_all(caller):
            raise PlexError(
                ErrorCode.FORBIDDEN,
                f"metrics name every tenant, and {caller.tenant!r} is no operator's; use a token "
                "of a tenant of router.operators, of any scope",
            )
        operator = Caller(caller.tenant, is_operator=True)
        asked = (ask(name, make(), operator) for name, make in ASKED.items())
        found = await asyncio.gather(*asked, return_exceptions=True)
        answers: dict[str, Any] = {}
        for name, answer in zip(ASKED, found, strict=True):
            if not isinstance(answer, BaseException):
                answers[name] = answer
            elif not isinstance(answer, PlexError):
                raise answer
        text = await asyncio.to_thread(render, meter, answers)
        kind = prometheus_client.CONTENT_TYPE_LATEST
        return web.Response(body=text, headers={"Content-Type": kind})

    return [web.get("/metrics", scrape)]


def render(meter: Meter, answers: Mapping[str, Any]) -> bytes:
    """Return the text of a scrape, from what was answered to each of `ASKED`."""
    registry = prometheus_client.CollectorRegistry()
    gc.disable()  # a full pass over thousands of series would hold the event loop up
    try:
        registry.register(_Once(_families(answers)))
        text = prometheus_client.generate_latest(registry)
    finally:
        gc.enable()
    return text + prometheus_client.generate_latest(meter.registry)


class _Once:
    """A collector of families that are there."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


class _Families:
    """Metrics by name, bounded in series."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}
        self._series = 0
        self.left_out = 0

    def say(self, name: str, value: float, **labels: object) -> None:
        """Add one series; every series of a metric has the same labels."""
        if self._series >= MAX_SERIES:
            self.left_out += 1
            return
        self._series += 1
        family = self._by_name.get(name)
        if family is None:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = self._by_name[name] = kind(name, HELP[name], labels=list(labels))
        family.add_metric([str(value) for value in labels.values()], value)

    def count(self, name: str, among: Iterable[Mapping[str, object]]) -> None:
        """Say how many have the same labels."""
        for labels, many in Counter(tuple(one.items()) for one in among).items():
            self.say(name, many, **dict(labels))

    def all(self) -> list[Metric]:
        """Return the metrics."""
        # So that this one is told, whatever was left out.
        self._series = 0
        self.say("plex_series_left_out", self.left_out)
        return list(self._by_name.values())


def _families(answers: Mapping[str, Any]) -> list[Metric]:
    families = _Families()
    for name in ASKED:
        families.say("plex_up", name in answers, method=name)
    for name, tell in TELLS.items():
        if name in answers:
            tell(families, answers[name])
    return families.all()


def _tell_nodes(families: _Families, reply: pb.ListNodesReply) -> None:
    families.count("plex_nodes", ({"state": node.state} for node in reply.nodes))
    for node in reply.nodes:
        families.say("plex_node_host_bytes", node.host_bytes_total, node=node.node_id)
        families.say("plex_node_host_used_bytes", node.host_bytes_used, node=node.node_id)
        if node.lease_age_us:
            age_s, restarts = node.lease_age_us / 1e6, node.state_manager_restarts
            families.say("plex_node_lease_age_seconds", age_s, node=node.node_id)
            families.say("plex_node_state_manager_restarts_total", restarts, node=node.node_id)
            for state in ("starting", "ready"):
                many = node.processes[state]
                families.say("plex_node_processes", many, node=node.node_id, state=state)
        for device in node.devices:
            at = {"node": node.node_id, "index": device.index, "kind": device.kind}
            families.say("plex_device_busy_seconds_total", device.busy_us / 1e6, **at)
            families.say("plex_device_switch_seconds_total", device.switch_us / 1e6, **at)
            families.say("plex_device_switches_total", device.switches, **at)
            families.say("plex_device_bytes", device.bytes_total, **at)
            families.say("plex_device_used_bytes", device.bytes_used, **at)
            families.say("plex_device_residents", len(device.resident_wpgs), **at)


def _tell_pack(families: _Families, pack: pb.PackReply) -> None:
    families.count(
        "plex_waiting_deployments",
        ({"tenant": one.tenant, "reason": one.short_of} for one in pack.waiting),
    )
    for demand in pack.demand:
        families.say("plex_missing_devices", demand.missing, kind=demand.kind)
        for reason, wanted in demand.wanted.items():
            families.say("plex_wanted_devices", wanted, kind=demand.kind, reason=reason)
    oldest: dict[str, int] = {}
    for one in pack.waiting:
        oldest[one.tenant] = min(oldest.get(one.tenant, one.since_us), one.since_us)
    for tenant, since_us in oldest.items():
        families.say("plex_oldest_wait_seconds", (pack.now_us - since_us) / 1e6, tenant=tenant)


def _tell_report(families: _Families, report: pb.ReportReply) -> None:
    for use in report.tenants:
        families.say("plex_pool_seconds_total", use.pooled_us / 1e6, tenant=use.tenant)
        families.say("plex_pool_cost_total", use.cost, tenant=use.tenant)
    living = [job for job in report.jobs if job.state in LIVING]
    families.count(
        "plex_jobs", ({"tenant": job.tenant, "state": LIVING[job.state]} for job in living)
    )
    for job in living:
        whose = {"tenant": job.tenant, "job": job.job_id}
        families.say("plex_job_device_seconds_total", job.device_us / 1e6, **whose)
        families.say("plex_job_wait_seconds_total", job.wait_us / 1e6, **whose)
        families.say("plex_job_switch_seconds_total", job.switch_us / 1e6, **whose)
        for name, ppm in (
            ("plex_job_slowdown_ratio", job.measured_ppm),
            ("plex_job_slowdown_predicted_ratio", job.predicted_ppm),
            ("plex_job_slowdown_bound_ratio", job.bound_ppm),
        ):
            if ppm:  # else it is not known yet
                families.say(name, ppm / 1e6, **whose)


def _tell_instances(families: _Families, reply: pb.ListInstancesReply) -> None:
    families.count(
        "plex_rollout_instances",
        ({"kind": one.kind, "phase": one.phase} for one in reply.instances),
    )
    for one in reply.instances:
        at = {"device": one.device, "kind": one.kind}
        families.say("plex_rollout_samples", one.running, **at, state="running")
        families.say("plex_rollout_samples", one.pending, **at, state="pending")
        families.say("plex_rollout_tokens_per_second", one.tokens_per_s, **at)


def _tell_rewards(families: _Families, reply: reward_pb2.RewardsReply) -> None:
    for pool in reply.pools:
        families.say("plex_reward_queued_samples", pool.queued, pool=pool.name)
        for state in ("idle", "busy", "starting"):
            families.say("plex_reward_workers", getattr(pool, state), pool=pool.name, state=state)


TELLS: Final[Mapping[str, Callable[[_Families, Any], None]]] = {
    "GetPack": _tell_pack,
    "ListNodes": _tell_nodes,
    "ListInstances": _tell_instances,
    "GetReport": _tell_report,
    "GetRewards": _tell_rewards,
}
"""What shows each answer."""
