"""The Router service: authentication, checks, and the way of every call from here.

The router keeps only the layouts of deployments, for a few seconds, so any replica can take any
call. The scheduler orders, records and deduplicates operations. An operation that is refused here
is submitted with its refusal and takes its number there: a gap would hold its successors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from plexclient.wire.errors import refused, to_wire
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc import paths
from plexsvc.clock import Clock
from plexsvc.errors import PlexError, bad_request, unavailable
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.router import bounds, models, names, rewards
from plexsvc.router.api import SchedulerApi
from plexsvc.router.auth import Caller, Tenants
from plexsvc.router.channels import ChannelPool
from plexsvc.router.checkpoints import Checkpoints
from plexsvc.router.config import RouterConfig
from plexsvc.router.control import METHODS, SERVICE, Control, shown
from plexsvc.router.deployments import DeploymentCache
from plexsvc.router.downloads import Downloads
from plexsvc.router.http import metrics, openai, page, sandbox_fusion
from plexsvc.router.http.server import serving
from plexsvc.router.http.tinker import lanes
from plexsvc.router.http.tinker import routes as tinker
from plexsvc.router.http.tinker.names import Names
from plexsvc.router.looks import Looks
from plexsvc.router.relay import Uploads
from plexsvc.router.rewards import Rewards
from plexsvc.router.roots import Roots
from plexsvc.router.validation import OperationRules, check_identity, digest_of
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.rpc.operating import OperationStreams
from plexsvc.rpc.services import Context, Handler, Streaming, add_service, has_option
from plexsvc.slots import Limit, Slots
from plexsvc.weights.owner import SEAL, check_owner

UNCOUNTED: Final = ("KeepAlive", "EndJob", "CancelOperation", "SubmitOperation")
"""Calls that count as no request: a job lives by them or makes room, or counts itself."""
RETRY_US: Final = 1_000_000
"""How long after the scheduler did not answer it is asked for tokens again."""

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]

log = Log(__name__)


class RouterServicer:
    """The Router's methods, each given the caller's tenant; `add_to_server` puts it on the wire."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        *,
        config: RouterConfig,
        clock: Clock,
        keys: ClusterKeys,
    ) -> None:
        self.tenants = Tenants(
            config.tokens, ends=config.token_ends, operators=config.operators, clock=clock
        )
        self.control = Control(scheduler, config=config)
        self._scheduler = scheduler
        self._clock = clock
        self._config = config
        self._looks = Looks()
        self._roots = Roots(config, self._looks)
        self.checkpoints = Checkpoints(self._roots)
        self._rules = OperationRules(config)
        self._channels, self._secret = ChannelPool(keys), keys.secret
        self._deployments = DeploymentCache(scheduler, config=config, clock=clock)
        self.uploads = Uploads(
            scheduler,
            deployments=self._deployments,
            rules=self._rules,
            channels=self._channels,
            config=config,
        )
        self.downloads = Downloads(
            scheduler,
            deployments=self._deployments,
            channels=self._channels,
            config=config,
            rules=self._rules,
            looks=self._looks,
        )
        self.rewards = Rewards(self._channels, config=config)
        self.meter = metrics.Meter()
        self.hears_scheduler = False
        self.calls = Slots(Limit(total=config.max_calls, what="calls", key="router.max_calls"))
        self.operations = OperationStreams(
            max_operations=config.max_operations_per_stream, key="router.max_operations_per_stream"
        )

    @asynccontextmanager
    async def http(self) -> AsyncGenerator[str]:
        """Serve what is offered over HTTP; yield where."""
        endpoint = openai.Endpoint(
            samples=self.downloads,
            status=self._status,
            hold=self.calls.hold,
            clock=self._clock,
        )
        wire = lanes.Wire(
            submit=self.submit_operation,
            uploads=self.uploads,
            downloads=self.downloads,
            clock=self._clock,
        )
        named = Names(
            self._scheduler,
            roots=self._roots,
            looks=self._looks,
            clock=self._clock,
            secret=self._secret,
        )
        front = tinker.Front(
            self._scheduler,
            wire,
            named,
            config=self._config,
            control=self.control.forward,
            keep_alive=self.keep_alive,
            deploy=self.create_deployment,
            hold=self.calls.hold,
        )
        routes = [
            *front.routes(),
            *sandbox_fusion.routes(self.rewards),
            *openai.routes(endpoint),
            *metrics.routes(self.meter, self.tenants, self._ask),
            *page.routes(self._ask),
        ]
        files = [*page.files(), *front.files()]
        served = serving(routes, tenants=self.tenants, config=self._config, files=files)
        async with front.running(), served as address:
            yield address

    async def _ask(self, name: str, request: Message, caller: Caller) -> Message:
        """Ask the scheduler or the reward service for what a caller is shown."""
        part = self.rewards if name in rewards.METHODS else self.control
        return await part.forward(
            name, request, tenant=caller.tenant, is_operator=caller.is_operator
        )

    async def learn_tokens(self, *, known: int = 0) -> None:
        """Learn which tokens operators made, once the table is not of the revision that is known.

        Raises:
            PlexError: `unavailable`, also for a table older than that.
        """
        request = pb.WatchTokensRequest(revision=known)
        table = await self._scheduler.call("WatchTokens", request, pb.WatchTokensReply)
        if table.revision < known:
            raise unavailable(
                f"the scheduler's table of tokens has revision {table.revision}, and {known} came "
                "before; it is not the newest scheduler"
            )
        self.tenants.learn(table)
        self.hears_scheduler = True

    async def follow_tokens(self) -> None:
        """Learn of every change of the tokens that operators made, until cancelled.

        While the scheduler does not answer, those last known stay.
        """
        while True:
            try:
                await self.learn_tokens(known=self.tenants.revision)
            except PlexError as error:
                self.hears_scheduler = False
                log.info("tokens not learned", error=error)
                await self._clock.sleep(RETRY_US)

    async def check_health(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Say whether the scheduler is heard, to anybody: a probe has no token."""
        states = health_pb2.HealthCheckResponse
        if request.service not in {"", SERVICE.full_name}:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return states(status=states.SERVING if self.hears_scheduler else states.NOT_SERVING)

    async def change_table(
        self, name: str, request: Message, *, tenant: TenantId, is_operator: bool
    ) -> Message:
        """Change tokens or quotas; this router heeds it from the answer on, others soon after."""
        reply = await self.control.forward(name, request, tenant=tenant, is_operator=is_operator)
        with suppress(PlexError):  # it is done, and will be learned
            await self.learn_tokens()
        return reply

    async def join_node(self, request: pb.JoinNodeRequest, context: Context) -> pb.JoinNodeReply:
        """Let in a node that shows a token for one, and tell it what directories it must have.

        Raises:
            PlexError: as `Tenants.joining`, and what the scheduler refuses.
        """
        request.token_id = self.tenants.joining(context)
        reply = await self.control.forward("JoinNode", request, tenant=TenantId(""))
        assert isinstance(reply, pb.JoinNodeReply), reply
        reply.roots.extend(map(str, self._config.model_roots))
        return reply

    def stop(self) -> None:
        """Let streams that would stay open end; call it before the server is stopped."""
        self.operations.stop()

    async def aclose(self) -> None:
        """Close the connections to nodes."""
        await self._channels.aclose()

    async def keep_alive(
        self, request: pb.KeepAliveRequest, *, tenant: TenantId
    ) -> pb.KeepAliveReply:
        """Extend a session, whatever is wrong with the figures that came along.

        Raises:
            PlexError: `bad_request` for figures that cannot be shown; the session lives on.
        """
        request.tenant = tenant
        try:
            bounds.check(request)
            names.check_metrics(request, self._config)
        except PlexError:
            request.ClearField("metrics")
            if max(request.acks.values(), default=0) > bounds.COUNTER.high:
                request.ClearField("acks")
            await self._scheduler.call("KeepAlive", request, pb.KeepAliveReply)
            raise
        return await self._scheduler.call("KeepAlive", request, pb.KeepAliveReply)

    async def create_deployment(
        self, request: pb.CreateDeploymentRequest, *, tenant: TenantId
    ) -> pb.Deployment:
        """Check a deployment against its model and bring it up."""
        await self._check_deployment(request, tenant=tenant, beside={})
        return shown(await self._scheduler.call("CreateDeployment", request, pb.Deployment))

    async def create_deployments(
        self, request: pb.CreateDeploymentsRequest, *, tenant: TenantId
    ) -> pb.CreateDeploymentsReply:
        """Check each deployment of a set and bring all up."""
        request.tenant = tenant
        names.check_set(request)
        specs: dict[str, pb.DeploymentSpec] = {}
        for one in request.deployments:
            await self._check_deployment(one, tenant=tenant, beside=specs)
            specs[one.deployment_id] = one.spec
        reply = await self._scheduler.call("CreateDeployments", request, pb.CreateDeploymentsReply)
        return shown(reply)

    async def _check_deployment(
        self,
        request: pb.CreateDeploymentRequest,
        *,
        tenant: TenantId,
        beside: Mapping[str, pb.DeploymentSpec],
    ) -> None:
        """Check a deployment; it may name one of those `beside`, or one that is known."""
        request.tenant = tenant
        if not request.deployment_id or not request.job_id:
            raise bad_request("create_deployment needs job_id and deployment_id")
        bounds.check(request)
        names.check_deployment(request)
        spec = request.spec
        models.check_spec(spec)
        if name := spec.model_deployment_id:
            _take_model(request, await self._spec(name, request, beside))
        if spec.seeds:
            models.check_seeds(spec, await self._spec(spec.seeds, request, beside))
        place = partial(self._roots.place_checkpoints, spec, tenant=tenant)
        await self._looks.look(tenant, place)
        if spec.model or spec.backend != "noop":
            await self._looks.look(tenant, partial(self._check_model, spec, tenant=tenant))

    async def submit_operation(
        self, operation: ops.Operation, *, tenant: TenantId
    ) -> ops.OperationResult:
        """Admit an operation and wait for its answer; refusals are answers too.

        `SubmitOperation` is this, and so is each message of `Operate`.
        """
        came_us = self._clock.monotonic_us()
        try:
            self.tenants.rates.take(tenant)
            check_identity(operation)
            # Before the router fills anything in: a repeat has the same digest wherever a path
            # leads by now.
            operation.digest = digest_of(operation)
            operation.tenant = tenant
            deployment = await self._deployments.get(
                tenant=tenant, job_id=operation.job_id, deployment_id=operation.deployment_id
            )
            try:
                bounds.check(operation)
                await self._roots.place_operation(operation)
                self._rules.admit(operation, deployment)
            except PlexError as refusal:
                _refuse(operation, refusal)
            result = await self._scheduler.submit(operation)
        except PlexError as error:
            result = refused(operation.operation_id, error)
        took_us = self._clock.monotonic_us() - came_us
        self.meter.answered(operation.WhichOneof("body") or "", result.error.code, took_us=took_us)
        return result

    async def _status(self, tenant: TenantId) -> pb.ClusterStatus:
        found = await self.control.forward("GetStatus", pb.GetStatusRequest(), tenant=tenant)
        assert isinstance(found, pb.ClusterStatus), found
        return found

    def _check_model(self, spec: pb.DeploymentSpec, *, tenant: TenantId) -> None:
        place = self._roots.place_model(spec, tenant=tenant)
        paths.check_files(place)
        with paths.view(place, only={"config.json", SEAL}.__contains__) as directory:
            check_owner(directory, tenant=tenant, what="model")
            if spec.backend == "noop":  # which reads nothing of it
                return
            table = models.check_model(spec, directory)
        models.check_weights(place, table, backend=spec.backend)

    async def _spec(
        self,
        name: str,
        request: pb.CreateDeploymentRequest,
        beside: Mapping[str, pb.DeploymentSpec],
    ) -> pb.DeploymentSpec:
        """Return what another deployment of the job was asked for as."""
        if name in beside:
            return beside[name]
        known = await self._deployments.get(
            tenant=TenantId(request.tenant), job_id=request.job_id, deployment_id=name
        )
        spec: pb.DeploymentSpec = known.spec
        return spec


def _take_model(request: pb.CreateDeploymentRequest, source: pb.DeploymentSpec) -> None:
    """Use the model of another deployment of the job."""
    name = request.spec.model_deployment_id
    if request.spec.model not in {"", source.model}:
        raise bad_request(
            f"deployment {request.name!r} names model {request.spec.model!r} and takes the one "
            f"of {name!r}, which is {source.model!r}; give one of the two"
        )
    request.spec.model = source.model
    if request.spec.role == "rollout" and source.HasField("lora"):
        request.spec.lora.CopyFrom(source.lora)


class _Served:
    """A router's methods as a server calls them: who calls is known before all else."""

    def __init__(self, router: RouterServicer) -> None:
        self._router = router

    @contextmanager
    def _known(self, name: str, context: Context) -> Iterator[Caller]:
        router = self._router
        with router.meter.calling(name):
            caller = router.tenants.caller(context)
            if not has_option(SERVICE.methods_by_name[name], pb.reads):
                caller.check_may_change(name)
            if name not in UNCOUNTED:
                # Before it holds anything: what is refused for its rate takes no place from others.
                router.tenants.rates.take(caller.tenant)
            with router.calls.hold(caller.tenant):
                yield caller

    def calling(self, name: str, method: Callable[..., Awaitable[Any]]) -> Handler:
        async def handle(request: object, context: Context) -> object:
            with self._known(name, context) as caller:
                async with caller.valid():
                    return await method(request, tenant=caller.tenant)

        return handle

    def forwarding(self, name: str, forward: Callable[..., Awaitable[Any]]) -> Handler:
        async def handle(request: object, context: Context) -> object:
            with self._known(name, context) as caller:
                return await forward(
                    name, request, tenant=caller.tenant, is_operator=caller.is_operator
                )

        return handle

    def streaming(self, name: str, method: Callable[..., AsyncGenerator[bytes]]) -> Streaming:
        async def handle(request: Any, context: Context) -> AsyncGenerator[bytes]:
            with self._known(name, context) as caller:
                bounds.check(request)
                sent = caller.through(method(request, tenant=caller.tenant))
                async with aclosing(sent) as messages:
                    async for message in messages:
                        yield message

        return handle

    async def operate(self, _: object, context: Context) -> None:
        with self._known("Operate", context) as caller:
            submit = partial(self._router.submit_operation, tenant=caller.tenant)
            async with caller.valid():
                await self._router.operations.serve(context, submit)


def add_to_server(router: RouterServicer, server: grpc.aio.Server) -> None:
    """Serve `router` on `server`."""
    served = _Served(router)
    forwarded = {
        **dict.fromkeys(METHODS, router.control.forward),
        **dict.fromkeys(rewards.METHODS, router.rewards.forward),
        **dict.fromkeys(("CreateToken", "RevokeToken", "SetQuota"), router.change_table),
    }
    own: dict[str, Callable[..., Awaitable[Any]]] = {
        "KeepAlive": router.keep_alive,
        "CreateDeployment": router.create_deployment,
        "CreateDeployments": router.create_deployments,
        "SubmitOperation": router.submit_operation,
        "StagePayload": router.uploads.relay,
        "GetCheckpoints": router.checkpoints.get,
        "ChangeCheckpoint": router.checkpoints.change,
    }
    streams: dict[str, Callable[..., AsyncGenerator[bytes]]] = {
        "FetchResult": router.downloads.result,
        "StreamGenerate": router.downloads.frames,
        "Sample": router.downloads.sample,
        "FetchModelFile": router.downloads.model_file,
        "Score": router.rewards.score,
    }
    add_service(
        server,
        SERVICE,
        calls={
            **{name: served.forwarding(name, method) for name, method in forwarded.items()},
            **{name: served.calling(name, method) for name, method in own.items()},
            "Operate": served.operate,
            "JoinNode": router.join_node,
        },
        streams={name: served.streaming(name, method) for name, method in streams.items()},
    )
    add_service(server, HEALTH, calls={"Check": router.check_health})


def _refuse(operation: ops.Operation, refusal: PlexError) -> None:
    """Have an operation take its number and no more: the scheduler answers it with the refusal."""
    operation.refusal.CopyFrom(to_wire(refusal))
    operation.ClearField("payload")
    operation.ClearField("after")
    if operation.WhichOneof("body") in {None, "initialize"}:
        operation.noop.SetInParent()  # the scheduler takes no number without something to do
