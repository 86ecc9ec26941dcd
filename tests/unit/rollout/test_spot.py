"""Spot instances of a deployment: they join in mid-step, are drained and killed; samples go on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from plexclient.wire.v1 import rollout_pb2, service_pb2, worker_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rollout import links, managers
from plexsvc.rollout.config import ManagerConfig, SpotConfig
from plexsvc.rollout.core.instances import SPOT as SPOT_KIND
from plexsvc.rollout.core.pool import SlotCame, SlotPriced
from plexsvc.rollout.providers.lent import LentEngines
from plexsvc.rollout.spot import PooledInstances, keep_closed, read_closed
from tests.fakes.fake_hosts import FakeHosts
from tests.rigs.rollout_bench import APPLIED, FAST, Bench, bench, recorded
from tests.rigs.rollout_requests import Answer

PROMPTS = [[3, 4, 5], [6, 7, 8, 9], [4, 4]]
SPOT = service_pb2.InstanceRange(kind="spot", most=4)
LENT = service_pb2.InstanceRange(kind="serving", most=4)


@asynccontextmanager
async def spot_bench(
    hosts: FakeHosts,
    *,
    held: bool = True,
    config: ManagerConfig = FAST,
    spot_range: service_pb2.InstanceRange = SPOT,
) -> AsyncIterator[Bench]:
    """A manager with one dedicated instance and those of `hosts`."""
    async with bench(held=held, config=config) as b:
        supply(b, hosts)
        b.ranges = [spot_range]
        assert (await b.initialize()).state == APPLIED
        try:
            yield b
        finally:
            for task in b.beside:
                task.cancel()
            await asyncio.wait(b.beside)
            await hosts.clear()


def supply(b: Bench, hosts: FakeHosts, *, price: float = 0.0) -> None:
    """Have deployments have the devices of `hosts`, while the bench runs."""
    spot = b.managers.use(hosts, (), config=SpotConfig(price=price))
    b.beside.append(b.group.create_task(spot.run()))


def of(b: Bench) -> PooledInstances:
    assert b.managers.spot is not None
    return b.managers.spot


async def until(
    b: Bench, *, serving: int = 0, closed: int = 0, free: int = 0, kind: str = "spot"
) -> None:
    """Return when so many instances of a kind serve, and so many of its devices are as said."""
    wanted = Counter(serving=serving, closed=closed, free=free)
    async with asyncio.timeout(120):
        while True:
            found = [one.phase for one in await b.managers.instances() if one.kind == kind]
            if all(found.count(phase) == count for phase, count in wanted.items()):
                return
            await asyncio.sleep(0.005)


async def undisturbed(version: int, seed: int) -> dict[tuple[int, int], Answer]:
    async with bench() as b:
        await b.pull(version)
        operation = b.generate(PROMPTS, seed=seed)
        assert (await b.execute(operation)).state == APPLIED
        return await b.answers(operation)


def tokens(answers: dict[tuple[int, int], Answer]) -> dict[tuple[int, int], list[int]]:
    return {key: answer.tokens for key, answer in answers.items()}


async def test_an_instance_that_comes_in_mid_step_has_the_newest_version_and_takes_samples() -> (
    None
):
    expected = await undisturbed(7, seed=3)
    hosts = FakeHosts([], held=False)
    async with spot_bench(hosts) as b:
        await b.pull(7)
        first = b.generate(PROMPTS, seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(first))
            b.instances[0].engine.allow(2)
            await recorded(b, first, tokens=6)
            hosts.places["n:0"] = True
            await until(b, serving=1)
            assert hosts.instances["n:0"].engine.version == VersionId("actor", 1, 7)
            second = b.generate(PROMPTS, seed=3)
            assert (await b.execute(second)).state == APPLIED
            b.instances[0].engine.release()
        assert running.result().state == APPLIED
        for operation in (first, second):
            answers = await b.answers(operation)
            assert tokens(answers) == tokens(expected)
            assert all(set(answer.versions) == {7} for answer in answers.values())
        assert hosts.instances["n:0"].engine.generated


async def test_a_notice_moves_samples_with_the_tokens_and_draws_they_have() -> None:
    expected = await undisturbed(7, seed=3)
    hosts = FakeHosts(["n:0"], held=True)
    async with spot_bench(hosts) as b:
        await until(b, serving=1)
        await b.pull(7)
        await until(b, serving=1)
        operation = b.generate(PROMPTS, seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            engines = [b.instances[0].engine, hosts.instances["n:0"].engine]
            for engine in engines:
                engine.allow(12)
            await recorded(b, operation, tokens=6 * 3)
            made = engines[1].generated
            b.managers.drain("n:0")
            engines[0].release()
        assert running.result().state == APPLIED
        assert running.result().metrics["instances_lost"] == 0
        assert tokens(await b.answers(operation)) == tokens(expected)
        assert made
        assert sum(engine.generated for engine in engines) == 6 * 12, "no token was made twice"
        assert of(b).pool.closed == {"n:0"}


@pytest.mark.parametrize("fault", ["before", "after", "twice"])
async def test_a_drain_ends_whenever_its_manager_dies(fault: str) -> None:
    hosts = FakeHosts(["n:0"], held=True)
    async with spot_bench(hosts) as b:
        await b.pull(7)
        await until(b, serving=1)
        operation = b.generate(PROMPTS, seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            engines = [b.instances[0].engine, hosts.instances["n:0"].engine]
            for engine in engines:
                engine.allow(12)
            await recorded(b, operation, tokens=6 * 3)
            if fault == "before":
                await b.serving.aclose()
                b.managers.drain("n:0")
                await asyncio.sleep(0)  # the order meets nobody
            else:
                b.managers.drain("n:0")
                await b.told_of_leaving()
            for _ in range(2 if fault == "twice" else 1):
                await b.kill_manager()
            for engine in engines:
                engine.release()
        assert running.result().state == APPLIED
        await until(b, closed=1)


@pytest.mark.parametrize("fault", ["none", "before", "after", "twice"])
async def test_what_costs_more_than_its_deployment_pays_goes_whenever_its_manager_dies(
    fault: str,
) -> None:
    hosts = FakeHosts(["n:0"], held=False)
    pays = service_pb2.InstanceRange(kind="spot", most=1, price=1.0)
    async with spot_bench(hosts, spot_range=pays) as b:
        await b.pull(7)
        await until(b, serving=1)
        if fault == "before":
            await b.serving.aclose()  # the order meets nobody
        of(b).post(SlotPriced(slot_id="n:0", price=2.0))
        await asyncio.sleep(0)
        for _ in range({"none": 0, "twice": 2}.get(fault, 1)):
            await b.kill_manager()
        await until(b, free=1)
        assert of(b).pool.slots["n:0"].price == 2.0
        of(b).post(SlotPriced(slot_id="n:0", price=0.5))
        await until(b, serving=1)


@asynccontextmanager
async def drained_of_two(fault: str) -> AsyncIterator[tuple[Bench, FakeHosts, str]]:
    """Yield a bench whose one instance of at most one, on two devices, has just been drained."""
    hosts = FakeHosts(["n:0", "n:1"], held=False)
    cap = service_pb2.InstanceRange(kind="spot", most=1)
    async with spot_bench(hosts, spot_range=cap) as b:
        await b.pull(7)
        await until(b, serving=1, free=1)
        if fault == "before":
            await b.serving.aclose()  # the order meets nobody
        (first,) = of(b).addresses
        b.managers.drain(first)
        yield b, hosts, first


@pytest.mark.parametrize("fault", ["none", "before", "twice"])
async def test_a_deployment_has_no_more_instances_than_it_asked_for_whenever_its_manager_dies(
    fault: str,
) -> None:
    async with drained_of_two(fault) as (b, hosts, first):
        for _ in range({"none": 0, "twice": 2}.get(fault, 1)):
            await b.kill_manager()
        await until(b, serving=1, closed=1)  # the other takes its place, once it is gone
        assert len(hosts.instances) == 1
        b.managers.open(first)
        await b.kill_manager()
        await until(b, serving=1, free=1)


async def replace_service(b: Bench, hosts: FakeHosts, *, price: float) -> None:
    """Have a successor lead, with a pool of its own; nodes stop the instances that it knows not."""
    await b.replace_service()
    await until(b, kind="dedicated", serving=1)  # its manager is told of the deployment
    await hosts.clear()
    supply(b, hosts, price=price)


@pytest.mark.parametrize("fault", ["before", "after", "twice"])
async def test_a_successor_of_the_service_buys_nothing_at_a_price_that_its_order_was_about(
    fault: str,
) -> None:
    expected = await undisturbed(7, seed=3)
    hosts = FakeHosts(["n:0"], held=False)
    pays = service_pb2.InstanceRange(kind="spot", most=1, price=1.0)
    async with spot_bench(hosts, spot_range=pays) as b:
        await b.pull(7)
        await until(b, serving=1)
        operation = b.generate(PROMPTS, seed=3)
        running = b.group.create_task(b.execute(operation))
        b.instances[0].engine.allow(2)
        await recorded(b, operation, tokens=2)
        if fault == "before":
            await b.serving.aclose()  # the order to drain meets nobody
        of(b).post(SlotPriced(slot_id="n:0", price=2.0))
        if fault != "before":
            await b.told_of_leaving()
        running.cancel()
        for _ in range(2 if fault == "twice" else 1):
            await replace_service(b, hosts, price=2.0)
        await until(b, free=1)
        assert not hosts.instances
        b.instances[0].engine.release()
        assert (await b.execute(operation)).state == APPLIED
        assert tokens(await b.answers(operation)) == tokens(expected)
        of(b).post(SlotPriced(slot_id="n:0", price=0.5))
        await until(b, serving=1)


@pytest.mark.parametrize("fault", ["before", "after", "twice"])
async def test_a_successor_of_the_service_starts_no_more_instances_than_were_asked_for(
    fault: str,
) -> None:
    async with drained_of_two(fault) as (b, hosts, first):
        await asyncio.sleep(0)
        for _ in range(2 if fault == "twice" else 1):
            await replace_service(b, hosts, price=0.0)
        await until(b, serving=1, closed=1)  # the other one: what was closed stays so
        assert list(hosts.instances) == [*({"n:0", "n:1"} - {first})]
        b.managers.open(first)
        await until(b, serving=1, free=1)
        assert len(hosts.instances) == 1


async def test_news_that_broke_with_the_line_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = FakeHosts(["n:0"], held=False)
    async with spot_bench(hosts) as b:
        await until(b, serving=1)
        hear = managers.Managers.hear
        broken: list[rollout_pb2.InstanceGone] = []

        def breaks(news: rollout_pb2.ManagerNews) -> None:
            if news.HasField("gone") and not broken:
                broken.append(news.gone)
                empty = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, "cut")
            hear(b.managers, news)

        monkeypatch.setattr(b.managers, "hear", breaks)
        b.managers.drain("n:0")
        await until(b, closed=1)
        assert broken


async def test_a_deployment_that_ends_while_its_manager_does_not_answer_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(managers, "LOOK_US", 1000)
    monkeypatch.setattr(links, "SILENT_LOOKS", 10**6)
    async with bench() as b:
        refuse = PlexError(ErrorCode.UNAVAILABLE, "no line")
        answers = [refuse, refuse, None]

        async def cancel(link: object, request: worker_pb2.CancelRequest) -> None:
            assert link
            assert request.wpg_id == "wpg"
            if (answer := answers.pop(0)) is not None:
                raise answer

        monkeypatch.setattr(links, "cancel", cancel)
        await b.managers.forget("rollout")
        async with asyncio.timeout(120):
            while answers:  # noqa: ASYNC110 - what is awaited tells nobody
                await asyncio.sleep(0.001)


async def test_a_device_that_was_drained_is_opened_again_and_no_other() -> None:
    hosts = FakeHosts(["n:0", "n:1"], held=False)
    async with spot_bench(hosts) as b:
        await until(b, serving=2)
        with pytest.raises(PlexError, match=r"n:0 was not drained by .* it is open"):
            b.managers.open("n:0")
        with pytest.raises(PlexError, match="no spot device or serving engine 'n:7'"):
            b.managers.open("n:7")
        b.managers.drain("n:0")
        await until(b, serving=1, closed=1)
        b.managers.open("n:0")
        await until(b, serving=2)


async def test_a_spot_instance_killed_without_notice_loses_no_token() -> None:
    expected = await undisturbed(7, seed=3)
    hosts = FakeHosts(["n:0"], held=True)
    async with spot_bench(hosts) as b:
        await until(b, serving=1)
        await b.pull(7)
        await until(b, serving=1)
        operation = b.generate(PROMPTS, seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            for engine in (b.instances[0].engine, hosts.instances["n:0"].engine):
                engine.allow(12)
            await recorded(b, operation, tokens=6 * 3)
            await hosts.instances["n:0"].kill()
            b.instances[0].engine.release()
        assert running.result().state == APPLIED
        assert tokens(await b.answers(operation)) == tokens(expected)
        assert "spot" not in {
            one.kind for one in await b.managers.instances() if one.phase == "serving"
        }


async def test_a_version_waits_for_no_spot_instance() -> None:
    hosts = FakeHosts(["n:0"])

    async def never(version: VersionId) -> None:
        del version
        await asyncio.Event().wait()

    async with spot_bench(hosts, held=False) as b:
        await until(b, serving=1)
        hosts.instances["n:0"].engine.loads = never
        assert (await b.pull(7)).state == APPLIED
        operation = b.generate(PROMPTS, seed=3)
        assert (await b.execute(operation)).weight_version == 7
        phases = {one.kind: one.phase for one in await b.managers.instances()}
        assert phases == {"dedicated": "serving", "spot": "catching up"}


async def test_a_provider_whose_instances_never_come_costs_a_job_nothing() -> None:
    hosts = FakeHosts(["n:0"], lies=True)
    async with spot_bench(hosts, held=False) as b:
        async with asyncio.timeout(120):
            while not hosts.tries:  # noqa: ASYNC110 - what is awaited tells nobody
                await asyncio.sleep(0.001)
        result = await b.execute(b.generate(PROMPTS))
        assert (result.state, result.metrics["instances_lost"]) == (APPLIED, 0)
        (told,) = [one for one in await b.managers.instances() if one.kind == "spot"]
        assert told.because == "n:0 was announced and never came"
        assert hosts.tries == 1, "it is left alone for a while"


async def test_an_instance_that_hangs_is_replaced_and_the_job_goes_on() -> None:
    expected = await undisturbed(7, seed=3)
    hosts = FakeHosts(["n:0"], held=True)
    async with spot_bench(hosts, held=False, config=replace(FAST, stall_us=200_000)) as b:
        await until(b, serving=1)
        await b.pull(7)
        await until(b, serving=1)
        operation = b.generate(PROMPTS, seed=3)
        result = await b.execute(operation)
        assert result.state == APPLIED
        assert result.metrics["instances_lost"] >= 1, "a busy machine's other one, too"
        assert tokens(await b.answers(operation)) == tokens(expected)
        assert "rollout.stall_us" in of(b).pool.slots["n:0"].because


async def test_a_job_that_ends_gives_its_spot_devices_back() -> None:
    hosts = FakeHosts(["n:0", "n:1"])
    async with spot_bench(hosts, held=False) as b:
        await until(b, serving=2)
        await b.managers.forget("rollout")
        async with asyncio.timeout(120):
            while hosts.instances:  # noqa: ASYNC110 - what is awaited tells nobody
                await asyncio.sleep(0.001)
        assert {one.phase for one in await b.managers.instances()} <= {"free", "stopping"}
        with pytest.raises(PlexError, match="is gone"):
            await b.execute(b.generate(PROMPTS))


async def test_a_lent_engine_samples_until_it_is_withdrawn_and_no_token_is_made_twice() -> None:
    expected = await undisturbed(7, seed=3)
    async with bench(held=True) as b:
        guest = await b.start_instance(held=True)
        offer = service_pb2.LendInstanceRequest(
            name="chat", address=guest.address, lease_us=60_000_000, price=0.5
        )
        b.ranges = [LENT]
        assert (await b.initialize()).state == APPLIED
        await b.pull(7)
        b.managers.offer(offer)
        await until(b, serving=1, kind="serving")
        assert guest.engine.version == VersionId("actor", 1, 7), "it pulled that by itself"
        (view,) = [one for one in await b.managers.instances() if one.kind == "serving"]
        assert (view.device, view.price) == ("serving/chat", 0.5)
        operation = b.generate(PROMPTS, seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            engines = [b.instances[0].engine, guest.engine]
            for engine in engines:
                engine.allow(12)
            await recorded(b, operation, tokens=6 * 3)
            b.managers.offer(service_pb2.LendInstanceRequest(name="chat", lease_us=0))
            engines[0].release()
        assert running.result().state == APPLIED
        assert running.result().metrics["instances_lost"] == 0
        assert tokens(await b.answers(operation)) == tokens(expected)
        assert guest.engine.generated
        assert sum(engine.generated for engine in engines) == 6 * 12, "no token was made twice"
        await until(b, free=1, kind="serving")


async def test_an_engine_that_has_another_model_is_given_to_nobody_and_says_why() -> None:
    async with bench() as b:
        b.ranges = [LENT]
        assert (await b.initialize()).state == APPLIED
        b.managers.offer(
            service_pb2.LendInstanceRequest(
                name="chat", address="unix:/nobody", model="/m/other", lease_us=60_000_000
            )
        )
        await until(b, free=1, kind="serving")
        (view,) = [one for one in await b.managers.instances() if one.kind == "serving"]
        assert view.because == "model: no deployment that wants one is of /m/other"


async def test_no_more_spot_instances_are_asked_for_than_the_seeding_window_says_pay() -> None:
    hosts = FakeHosts(["n:0", "n:1", "n:2"], held=False)
    async with spot_bench(hosts, held=False) as b:
        await b.add_reserved(await b.start_instance())
        await until(b, serving=3)
        most: list[float] = []
        for train_us in (0, 3_600_000_000):  # training that takes far longer than the rollout
            trained = worker_pb2.Trained(train_us=train_us)
            operation = b.generate(PROMPTS, seed=3)
            async with asyncio.TaskGroup() as group:
                group.create_task(b.execute(operation))
                seeded = group.create_task(b.seed(operation, trained=trained))
            most.append(seeded.result().metrics.get("most_instances", 0))
        assert most[-1] == 1
        await until(b, serving=1, free=2)


def pooled(path: Path) -> PooledInstances:
    hosts = LentEngines(SystemClock())
    made = PooledInstances(
        SPOT_KIND, hosts, hosts, clock=SystemClock(), deployments={}, closed_file=path
    )
    for name in ("n:0", "n:1"):
        made.post(SlotCame(slot_id=name))
    return made


def phases(made: PooledInstances) -> dict[str, str]:
    return {view.device: view.phase for view in made.without_instance()}


def test_a_successor_knows_what_was_closed_and_what_was_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "closed.json"
    first = pooled(path)
    assert phases(first) == {"n:0": "free", "n:1": "free"}
    first.close("n:0")
    first.close("n:1")
    assert phases(pooled(path)) == {"n:0": "closed", "n:1": "closed"}
    first.open("n:1")
    assert phases(pooled(path)) == phases(first) == {"n:0": "closed", "n:1": "free"}


def test_what_cannot_be_kept_is_refused_and_closes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "closed.json"
    made = pooled(path)
    with pytest.raises(PlexError, match="nothing was changed") as refused:
        made.close("n:0")
    assert refused.value.code is ErrorCode.DISK_FULL
    assert phases(made) == {"n:0": "free", "n:1": "free"}
    path.parent.mkdir()
    made.close("n:0")
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(PlexError, match="nothing was changed"):
        made.open("n:0")
    assert phases(made) == {"n:0": "closed", "n:1": "free"}


@pytest.mark.parametrize("told", ["", "{}", "[1]", '{"n:0": 1}', "["])
def test_a_file_of_another_hand_is_refused_by_name(tmp_path: Path, told: str) -> None:
    path = tmp_path / "closed.json"
    path.write_text(told)
    with pytest.raises(PlexError, match=r"closed\.json.* cannot be read"):
        read_closed(path)


def test_the_file_is_a_list_of_names(tmp_path: Path) -> None:
    keep_closed(tmp_path / "closed.json", {"n:1", "n:0"})
    assert json.loads((tmp_path / "closed.json").read_text()) == ["n:0", "n:1"]
