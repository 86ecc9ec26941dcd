"""Operations of a rollout deployment: what each does with its instances."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc.aio

from plexclient.wire.errors import from_wire, to_wire
from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    statemanager_pb2,
    worker_pb2,
)
from plexsvc.errors import PlexError, bad_request, not_found, unavailable
from plexsvc.ids import OperationId, VersionId
from plexsvc.log import Log
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.instances import RESERVED
from plexsvc.rollout.deployment import RolloutDeployment, joined
from plexsvc.rollout.engines.base import MODEL
from plexsvc.rollout.generation import RunningGenerate, metrics_of
from plexsvc.rollout.lines import InstanceLine, ServedVersion, close_lines
from plexsvc.rollout.store import RecordStore
from plexsvc.rollout.validation import GenerateLimits, check_generate, check_ids
from plexsvc.rpc.errors import checked, error_from

log = Log(__name__)

ENCODE_CALL_S: Final = 10.0
"""How long an instance may take to encode texts: a chat template is a program of its tenant's."""

APPLIED = operations_pb2.OPERATION_STATE_APPLIED
FAILED = operations_pb2.OPERATION_STATE_FAILED
REFUSED = operations_pb2.OPERATION_STATE_REFUSED


async def initialize(
    deployment: RolloutDeployment, request: worker_pb2.ExecuteRequest
) -> worker_pb2.ExecuteReply:
    """Connect to the instances; those it had are let go, their samples go on with these.

    Raises:
        PlexError: `bad_request` without addresses; `unavailable` when one does not answer.
    """
    if not request.instance_addresses:
        raise bad_request(f"{deployment.deployment_id} came without instance addresses")
    given = request.deployment
    deployment.core.is_shared = given.spec.shares_devices
    described = await _connect(deployment, request.instance_addresses, fence=request.fence)
    deployment.describe = described
    deployment.takes_weights = bool(given.spec.model_deployment_id)
    deployment.seeds = given.spec.seeds
    lengths = [given.spec.max_model_len, described.max_sequence_length]
    deployment.limits = GenerateLimits(
        vocab_size=given.vocab_size or described.vocab_size,
        max_model_len=min(filter(None, lengths), default=0),
        max_samples=deployment.config.max_samples_per_operation,
    )
    reply = success(request.operation)
    reply.result.metrics["instances"] = len(request.instance_addresses)
    return reply


async def _connect(
    deployment: RolloutDeployment, addresses: Sequence[str], *, fence: common_pb2.Fence
) -> worker_pb2.DescribeReply:
    """Take these instances in place of those before; return what the first one is.

    They get the version in use, if there is one; samples of the ones before go on with them.
    When one cannot serve it, those before stay.
    """
    fresh = {deployment.new_id(): deployment.open(address) for address in addresses}
    lines = deployment.lines
    before = {one: line for one, line in lines.items() if deployment.is_dedicated(one)}
    try:
        described = [await line.describe() for line in fresh.values()]
        found = {one: await line.probe() for one, line in fresh.items()}
        if before:
            for one, line in fresh.items():
                found[one] = await _catch_up(deployment, line, found[one], fence=fence)
    except BaseException:
        await close_lines(fresh)
        raise
    kept = {one: line for one, line in deployment.lines.items() if one not in before}
    deployment.lines = fresh | kept
    deployment.fence.CopyFrom(fence)
    deployment.asleep = {one for one, has in found.items() if has.is_asleep}
    taken = tuple(joined(one, line, found[one]) for one, line in fresh.items())
    deployment.post(events.InstancesReplaced(instances=taken))
    await close_lines(before)
    return described[0]


async def _catch_up(
    deployment: RolloutDeployment,
    line: InstanceLine,
    found: ServedVersion,
    *,
    fence: common_pb2.Fence,
) -> ServedVersion:
    """Give a successor the version in use; return that."""
    wanted = deployment.core.version
    if found.version == wanted:
        return found
    because = "it has another"
    if wanted in deployment.sources:
        try:
            reply = await deployment.load(line, wanted, fence=fence)
        except PlexError as error:
            because = f"load {wanted}: {error.message}"
        else:
            if not reply.HasField("error"):
                return ServedVersion(VersionId.of(reply.version), reply.checksum)
            because = f"load {wanted}: {from_wire(reply.error).message}"
    raise unavailable(
        f"instance {line.address} of {deployment.deployment_id} cannot serve "
        f"{wanted}: {because}; the instances before go on"
    )


async def pull(
    deployment: RolloutDeployment, request: worker_pb2.ExecuteRequest
) -> worker_pb2.ExecuteReply:
    """Load a published version on every instance; only those that have it serve.

    Raises:
        PlexError: what an instance refused it with.
    """
    operation = request.operation
    deployment.fence.CopyFrom(request.fence)
    if operation.pull.finishes_turns:
        await finish_turns(deployment)
    deployment.exclusive_seq = max(deployment.exclusive_seq, operation.seq)
    loaded = await load(deployment, request.published)
    reply = success(operation)
    reply.result.weight_version = request.published.version
    reply.result.metrics["nbytes"] = max(one.nbytes for one in loaded)
    reply.result.metrics["load_us"] = max(one.load_us for one in loaded)
    reply.result.metrics["instances"] = len(loaded)
    reply.result.texts["checksum"] = next((one.checksum for one in loaded if one.checksum), "")
    reply.digest = reply.result.texts["checksum"].encode()
    return reply


async def finish_turns(deployment: RolloutDeployment) -> None:
    """Return when the turns under way have ended; others wait for the version that follows."""
    deployment.post(events.TurnsHeld())
    try:
        await deployment.has_no_turns.wait()
    except asyncio.CancelledError:
        deployment.post(events.TurnsHeld(is_over=True))
        raise


async def load(
    deployment: RolloutDeployment, source: statemanager_pb2.PublishedVersion, *, wakes: bool = True
) -> list[rollout_pb2.LoadVersionReply]:
    """Load a version on all instances at once; return the replies of the dedicated ones.

    Those of other kinds load it in their own time, and serve then. When all dedicated ones are
    lost meanwhile, their successors load it. Unless it `wakes` those that sleep, they
    load it when they wake.

    Raises:
        PlexError: what an instance refused with.
    """
    version = VersionId.of(source)
    deployment.sources[version] = source
    if wakes:
        deployment.asleep.clear()
    ordered = deployment.decide(events.VersionWanted(version=version, wakes=wakes))
    async with asyncio.TaskGroup() as group:
        tasks = []
        for order in ordered:
            if isinstance(order, orders.UpdateInstance):
                if deployment.is_dedicated(order.instance_id):
                    tasks.append(group.create_task(deployment.update(order)))
                else:
                    deployment.group.create_task(deployment.update(order))
    outcomes = [task.result() for task in tasks]
    wanted = deployment.core.version
    deployment.sources = {one: at for one, at in deployment.sources.items() if one == wanted}
    for outcome in outcomes:
        if isinstance(outcome, PlexError):
            raise outcome
    loaded = [one for one in outcomes if isinstance(one, rollout_pb2.LoadVersionReply)]
    if not loaded and not asleep(deployment):
        await deployment.is_served.wait()
        loaded = [rollout_pb2.LoadVersionReply(checksum=deployment.core.checksum)]
    return loaded


async def resume(deployment: RolloutDeployment, source: statemanager_pb2.PublishedVersion) -> None:
    """Serve what the manager before served, from instances alone if no node has it any more.

    Raises:
        PlexError: what an instance refused with, which may be over soon.
    """
    try:
        await load(deployment, source, wakes=False)
    except PlexError:
        if source.holders:
            raise
    if not source.holders:
        deployment.locate(source)


async def prepare(deployment: RolloutDeployment, operation: operations_pb2.Operation) -> None:
    """Turn the texts and chats of a sample into token ids, and say how long it may get.

    Raises:
        PlexError: `not_found` before the first sync of a deployment that takes the weights of
            another; `bad_request` for what the model cannot read; `unavailable` when no instance
            could encode.
    """
    deployment_id, core = deployment.deployment_id, deployment.core
    if deployment.takes_weights and core.version == MODEL:
        raise not_found(f"{deployment_id} has no weights yet: `sync` it before sampling")
    generate = operation.generate
    texts = generate.prompt_texts
    for index, prompt in enumerate(generate.prompts):  # before a tokenizer is asked about them
        check_ids(prompt.token_ids, what=f"prompt {index}", limits=deployment.limits)
    if prompts := [p for p in generate.prompts if p.text or p.chat or texts]:
        able = [(one.load, i) for i, one in core.instances.items() if one.is_serving]
        if not able:
            raise unavailable(f"no instance serves {deployment_id}")
        stub = deployment.lines[min(able)[1]].stub
        request = rollout_pb2.EncodeRequest(prompts=prompts, texts=texts)
        try:
            reply = await stub.Encode(request, timeout=ENCODE_CALL_S)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        for prompt, encoded in zip(prompts, reply.prompts, strict=True):
            prompt.CopyFrom(encoded)
    longest = max((len(prompt.token_ids) for prompt in generate.prompts), default=0)
    if not generate.sampling.max_tokens:
        generate.sampling.max_tokens = max(1, deployment.limits.max_model_len - longest)


async def generate(
    deployment: RolloutDeployment, request: worker_pb2.ExecuteRequest, records: RecordStore
) -> worker_pb2.ExecuteReply:
    """Generate every sample into a token record, whose frames others read meanwhile.

    Raises:
        PlexError: `bad_request`, `payload_too_large`, `queue_full`, `worker_died`.
    """
    operation = request.operation
    check_generate(operation.generate, deployment.limits)
    deployment.fence.CopyFrom(request.fence)
    record = records.open(operation)
    record.open_samples(operation)
    sampling = operation.generate.sampling
    width = (1 + sampling.texts) * (1 + sampling.top_logprobs)
    most_tokens = len(record.samples) * sampling.max_tokens * width
    if sampling.prompt_logprobs:
        prompts = sum(len(prompt.token_ids) for prompt in operation.generate.prompts)
        width = (1 + sampling.texts) * (1 + sampling.top_prompt_logprobs)
        most_tokens += prompts * max(1, sampling.n) * width
    records.admit(record, most_tokens=most_tokens)
    started_us, held_us = deployment.clock.monotonic_us(), deployment.held_us()
    try:
        losses = await RunningGenerate(record, deployment).run()
    finally:
        await deployment.left()  # before another order may wake them
    wall_us = deployment.clock.monotonic_us() - started_us
    reply = success(operation)
    for name, value in metrics_of(record, wall_us=wall_us, losses=losses).items():
        reply.result.metrics[name] = value
    reply.result.metrics["instance_s"] = (deployment.held_us() - held_us) / 1e6
    reply.result.weight_version = deployment.core.version.version
    reply.digest = record.digest()
    return reply


async def seed(
    own: RolloutDeployment, request: worker_pb2.ExecuteRequest, served: RolloutDeployment
) -> worker_pb2.ExecuteReply:
    """Have engines on training devices serve a generate of another deployment.

    They wake with its version, and serve until its core closes the window. Returns when the last
    one has left. One that does not come is left out; the window is over when none comes.
    """
    operation, now_us = request.operation, served.clock.monotonic_us()
    trained = None
    if request.HasField("trained"):
        ended_us = now_us - request.trained.ended_ago_us
        trained = events.StepTrained(train_us=request.trained.train_us, ended_us=ended_us)
    window: asyncio.Future[orders.EndWindow] = asyncio.get_running_loop().create_future()
    served.window = window
    opened = events.WindowOpened(
        at_us=now_us,
        operation_id=OperationId(operation.after[0]),
        engines=len(own.lines),
        trained=trained,
    )
    served.post(opened)
    if not window.done():  # else there is nothing to serve, and no engine is woken for it
        addresses = [line.address for line in own.lines.values()]
        joining = served.group.create_task(_join_window(served, addresses, fence=request.fence))
        try:
            await window
            await asyncio.wait([joining])  # one that wakes must not be told to sleep meanwhile
        finally:
            joining.cancel()
            if not window.done():
                served.post(events.WindowLeft(at_us=served.clock.monotonic_us()))
            served.window = None
    over, reply = window.result(), success(operation)
    reply.result.metrics["seeded_s"] = over.seeded_us / 1e6
    if over.next_window_us is not None:
        reply.result.metrics["next_window_s"] = over.next_window_us / 1e6
    if over.most_instances is not None:
        reply.result.metrics["most_instances"] = over.most_instances
    return reply


async def _join_window(
    served: RolloutDeployment, addresses: Sequence[str], *, fence: common_pb2.Fence
) -> None:
    """Take engines on training devices; leave the window if none came."""

    async def join(address: str) -> bool:
        """Wake an engine and take it; return whether it came."""
        line, came = served.open(address, fence=fence), False
        try:
            reply = await served.load(line, served.core.version, fence=fence)
            if reply.HasField("error"):
                refusal = from_wire(reply.error)
                log.warning("engine not in the seeding window", address=address, error=refusal)
            elif served.window is not None and not served.window.done():  # else it came too late
                log.info("engine joined the seeding window", address=address)
                found = ServedVersion(VersionId.of(reply.version), reply.checksum)
                served.join(line, found, kind=RESERVED.name)
                came = True
        except PlexError as error:
            log.warning("engine not in the seeding window", address=address, error=error)
        finally:
            if not came:
                await line.channel.close()
        return came

    if not any(await asyncio.gather(*map(join, addresses))):
        served.post(events.WindowLeft(at_us=served.clock.monotonic_us()))


async def sleep(deployment: RolloutDeployment) -> rollout_pb2.MoveInstancesReply:
    """Have every instance give its memory back; nothing of the deployment runs meanwhile.

    Raises:
        PlexError: what an instance refused with.
    """
    slept = rollout_pb2.MoveInstancesReply()
    for one, line in list(deployment.lines.items()):
        reply = await deployment.lay_down(one, line)
        if reply is None:
            slept.unreached.append(line.address)
        else:
            slept.nbytes += checked(reply).nbytes
    return slept


async def wake(deployment: RolloutDeployment) -> rollout_pb2.MoveInstancesReply:
    """Wake every instance with the version in use.

    One that does not wake is lost, and sought like others.
    """
    deployment.asleep.clear()
    version = deployment.core.version
    updates = [orders.UpdateInstance(instance_id=one, version=version) for one in deployment.lines]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(deployment.update(update)) for update in updates]
    woken = rollout_pb2.MoveInstancesReply()
    for update, task in zip(updates, tasks, strict=True):
        reply = task.result()
        if isinstance(reply, PlexError):
            because = f"wake: {reply.message}"
            lost = events.InstanceCallFailed(instance_id=update.instance_id, because=because)
            deployment.post(lost)
        elif reply is not None:
            woken.nbytes += reply.nbytes
    return woken


def asleep(deployment: RolloutDeployment) -> list[str]:
    """Return the addresses of the instances that sleep."""
    lines = deployment.lines
    return [lines[one].address for one in sorted(deployment.asleep) if one in lines]


def success(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that was applied."""
    result = operations_pb2.OperationResult(operation_id=operation.operation_id, state=APPLIED)
    return worker_pb2.ExecuteReply(result=result)


def failure(
    operation: operations_pb2.Operation, error: PlexError, *, state: int = FAILED
) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that was refused or failed."""
    result = operations_pb2.OperationResult(
        operation_id=operation.operation_id,
        state=state,  # type: ignore[arg-type]  # an int of that enum
        error=to_wire(error),
    )
    return worker_pb2.ExecuteReply(result=result)
