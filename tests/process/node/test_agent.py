"""The node agent as a process: it starts a rank once, records its end, leaves nothing behind."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from plexclient.wire.v1 import node_pb2
from plexsvc.node.logs import tail
from tests.process.node.conftest import IMAGE, RunningAgent, agent_config, started
from tests.rigs.processes import descendants, is_alive, name_of

pytestmark = pytest.mark.process


async def gone(pids: list[int]) -> None:
    async with asyncio.timeout(120):
        while any(is_alive(pid) for pid in pids):  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.01)


async def buried(pid: int) -> None:
    """Return when not even a zombie is left."""

    def is_left() -> bool:
        return Path(f"/proc/{pid}").exists()

    async with asyncio.timeout(120):
        while is_left():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.01)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def code_of(error: BaseException) -> grpc.StatusCode:
    assert isinstance(error, grpc.aio.AioRpcError)
    return error.code()


async def test_a_spawned_process_is_ready_and_described(agent: RunningAgent) -> None:
    reply = await agent.spawn("serve", name="x")
    assert reply.error.code == ""
    assert reply.address == f"fake:{reply.pid}"
    assert is_alive(reply.pid)
    described = await agent.describe()
    assert [(proc.proc_id, proc.pid) for proc in described.procs] == [("wpg_1/0", reply.pid)]
    assert described.state_manager.startswith("fake:")
    assert "serving x" in tail(Path(reply.log_path))
    ready = await agent.next_event("ready")
    assert (ready.ready.proc_id, ready.ready.incarnation) == ("wpg_1/0", 1)


async def test_an_agent_examines_its_host(agent: RunningAgent, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        roots = [str(tmp_path), str(tmp_path / "gone")]
        request = node_pb2.ExamineRequest(roots=roots, reaches=[there, "127.0.0.1:none"])
        found = await agent.stub.Examine(request, timeout=120)
    assert list(found.unreached) == ["127.0.0.1:none"]
    assert [bool(root.problem) for root in found.roots] == [False, True]


async def test_a_rank_is_killed_for_memory_before_the_state_manager(agent: RunningAgent) -> None:
    rank = (await agent.spawn("serve")).pid
    state_manager = int((await agent.describe()).state_manager.removeprefix("fake:"))
    assert oom_score_of(rank) > oom_score_of(state_manager)


def oom_score_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_repeating_a_spawn_starts_nothing(agent: RunningAgent) -> None:
    replies = await asyncio.gather(*(agent.spawn("serve") for _ in range(4)))
    assert len({reply.pid for reply in replies}) == 1
    assert len((await agent.describe()).procs) == 1


async def test_a_newer_incarnation_replaces_the_older_and_refuses_its_return(
    agent: RunningAgent,
) -> None:
    first = await agent.spawn("serve", incarnation=1)
    second = await agent.spawn("serve", incarnation=2)
    assert not is_alive(first.pid)
    assert is_alive(second.pid)
    assert (await agent.spawn("serve", incarnation=1)).error.code == "stale_fence"


async def test_an_older_scheduler_is_refused_everywhere(agent: RunningAgent) -> None:
    reply = await agent.spawn("serve", epoch=7)
    assert (await agent.spawn("serve", epoch=6, proc_id="wpg_2/0")).error.code == "stale_fence"
    renewal = await agent.renew(epoch=6, ttl_us=1)
    assert renewal.error.code == "stale_fence"
    assert renewal.max_scheduler_epoch == 7
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await agent.stop("wpg_1/0", epoch=6)
    assert code_of(caught.value) is grpc.StatusCode.FAILED_PRECONDITION
    assert is_alive(reply.pid)


async def test_a_process_that_leaves_early_answers_with_its_code_and_log(
    agent: RunningAgent,
) -> None:
    reply = await agent.spawn("exit_early", code=7)
    assert reply.error.code == "worker_died"
    assert reply.error.facts["exit_code"] == "7"
    assert "leaving early" in reply.error.facts["log_tail"]
    exited = (await agent.next_event("exited")).exited
    assert (exited.exit_code, exited.signal, exited.proc_id) == (7, 0, "wpg_1/0")
    assert (await agent.spawn("exit_early", code=7)).error.code == "worker_died"


async def test_a_crash_is_recorded_with_its_traceback(agent: RunningAgent) -> None:
    await agent.spawn("crash", message="out of luck")
    exited = (await agent.next_event("exited")).exited
    assert exited.exit_code == 1
    assert "RuntimeError: out of luck" in exited.log_tail


async def test_a_killed_process_is_recorded_with_its_signal(agent: RunningAgent) -> None:
    reply = await agent.spawn("serve")
    os.kill(reply.pid, signal.SIGKILL)
    exited = (await agent.next_event("exited")).exited
    assert (exited.signal, exited.pid) == (9, reply.pid)
    assert not (await agent.describe()).procs


async def test_stop_ends_a_process_by_term(agent: RunningAgent) -> None:
    reply = await agent.spawn("serve")
    await agent.stop("wpg_1/0")
    assert not is_alive(reply.pid)
    assert (await agent.next_event("exited")).exited.signal == signal.SIGTERM
    await agent.stop("wpg_1/0")
    await agent.stop("unknown/0")


async def test_stop_kills_what_ignores_term(agent: RunningAgent) -> None:
    await agent.spawn("ignore_term")
    await agent.stop("wpg_1/0", grace_us=50_000)
    assert (await agent.next_event("exited")).exited.signal == signal.SIGKILL


async def test_the_stacks_of_what_hangs_are_in_its_log(agent: RunningAgent) -> None:
    await agent.spawn("ignore_term")
    await agent.stop("wpg_1/0", grace_us=50_000)
    written = "".join(path.read_text() for path in agent.runtime_dir.glob("logs/*.log"))
    assert "most recent call first" in written
    assert "in ignore_term" in written


async def test_what_hangs_is_killed_though_its_log_is_gone(agent: RunningAgent) -> None:
    reply = await agent.spawn("ignore_term")
    for log in agent.runtime_dir.glob("logs/wpg_1*"):
        log.unlink()
    await agent.stop("wpg_1/0", grace_us=50_000)
    assert not is_alive(reply.pid)


async def test_a_process_says_where_it_is_and_goes_on(agent: RunningAgent) -> None:
    reply = await agent.spawn("ignore_term")
    found = await agent.stacks("wpg_1/0")
    assert found.log_path == reply.log_path
    assert "in ignore_term" in found.stacks
    assert "in ignore_term" in tail(Path(found.log_path))
    assert is_alive(reply.pid)
    os.kill(reply.pid, signal.SIGSTOP)
    assert not (await agent.stacks("wpg_1/0")).stacks
    assert await agent.stacks("unknown/0") == node_pb2.WriteStacksReply()


async def test_what_a_rank_started_dies_with_it(agent: RunningAgent) -> None:
    reply = await agent.spawn("with_child")
    child = int(reply.address)
    os.kill(reply.pid, signal.SIGKILL)
    assert (await agent.next_event("exited")).exited.signal == signal.SIGKILL
    await gone([child])
    assert not is_alive(child)


async def test_the_sockets_of_a_process_are_removed_with_it(agent: RunningAgent) -> None:
    reply = await agent.spawn("report_inside")
    listen = ast.literal_eval(reply.address)["config"]["listen"]
    sockets = [
        Path(listen.removeprefix("unix:")).with_suffix(kind) for kind in (".sock", ".orders")
    ]
    for path in sockets:
        path.touch()
    os.kill(reply.pid, signal.SIGKILL)
    await agent.next_event("exited")
    assert not [path for path in sockets if path.exists()]


async def test_a_process_that_is_not_ready_in_time_is_killed(
    impatient_agent: RunningAgent,
) -> None:
    reply = await impatient_agent.spawn("stay_silent")
    assert reply.error.code == "worker_died"
    assert "ready_timeout_us" in reply.error.message
    event = await impatient_agent.next_event("exited")
    if event.exited.proc_id == "warm/0":  # so it was on a slow machine
        event = await impatient_agent.next_event("exited", after=event.index)
    exited = event.exited
    assert (exited.proc_id, exited.signal) == ("wpg_1/0", 9)


async def test_a_process_starts_clean(agent: RunningAgent) -> None:
    reply = await agent.spawn("report_inside", number=3)
    facts = ast.literal_eval(reply.address)
    assert facts["zygote_env"] == "set before the import"
    given = facts["config"]
    assert given["number"] == 3
    assert given["listen"].startswith(f"unix:{agent.runtime_dir}/p")
    assert given["keys_file"] == str(agent.runtime_dir / "keys.json")
    assert facts["own_group"]
    assert len(facts["fds"]) <= 5, "0, 1, 2, the ready pipe and the listing itself"


async def test_a_wrong_request_is_refused_with_what_would_be_right(agent: RunningAgent) -> None:
    spec = node_pb2.ProcSpec(proc_id="a/0", image="trian")
    reply = await agent.stub.Spawn(node_pb2.SpawnRequest(spec=spec), timeout=120)
    assert reply.error.code == "bad_request"
    assert "train" in reply.error.message
    spec = node_pb2.ProcSpec(proc_id="a/0", image="train", config_json="{")
    reply = await agent.stub.Spawn(node_pb2.SpawnRequest(spec=spec), timeout=120)
    assert reply.error.code == "bad_request"
    reply = await agent.spawn("no_such_function")
    assert "no_such_function" in reply.error.facts["log_tail"]


async def test_an_expired_lease_kills_every_rank_until_it_is_renewed(agent: RunningAgent) -> None:
    pids = [(await agent.spawn("ignore_term", proc_id=f"wpg_{n}/0")).pid for n in range(3)]
    await agent.renew(ttl_us=50_000)
    await gone(pids)
    assert (await agent.next_event("exited")).exited.signal == 9
    refused = await agent.spawn("serve", proc_id="wpg_9/0")
    assert refused.error.code == "unavailable"
    assert refused.error.retryable
    await agent.renew(ttl_us=60_000_000)
    assert (await agent.spawn("serve", proc_id="wpg_9/0")).error.code == ""


async def test_events_replay_from_any_index(agent: RunningAgent) -> None:
    for number in range(3):
        await agent.spawn("serve", proc_id=f"wpg_{number}/0")
    first = (await agent.next_event("ready")).index
    assert (await agent.next_event("ready", after=first)).index == first + 1
    assert (await agent.next_event("ready", after=first + 1)).ready.proc_id == "wpg_2/0"
    assert (await agent.describe()).next_event_index == first + 3


async def test_a_dead_zygote_takes_nobody_with_it_and_is_replaced(agent: RunningAgent) -> None:
    first = await agent.spawn("serve")
    assert parent_of(first.pid) == agent.process.pid
    for number in range(2):
        await replaced_zygote(agent)
        other = await agent.spawn("serve", proc_id=f"wpg_{number + 2}/0")
        assert other.error.code == ""
    assert is_alive(first.pid)
    os.kill(first.pid, signal.SIGTERM)
    exited = (await agent.next_event("exited")).exited
    assert (exited.proc_id, exited.signal) == ("wpg_1/0", signal.SIGTERM)
    assert len((await agent.describe()).procs) == 2


async def test_a_zygote_that_dies_as_it_forks_leaves_no_zombie(tmp_path: Path) -> None:
    image = replace(IMAGE, preload="tests.fakes.fake_dying_preload")
    async with started(agent_config(tmp_path, images=(image,))) as agent:
        assert (await agent.spawn("serve")).error.code == ""
        forget_death(agent)
        async with asyncio.timeout(120):
            while zombies_of(agent.process.pid):  # noqa: ASYNC110 - other processes tell nobody
                await asyncio.sleep(0.01)


def forget_death(agent: RunningAgent) -> None:
    """Remove the mark of a zygote that died, which is there."""
    Path(tempfile.gettempdir(), f"died-{agent.process.pid}").unlink()


def zombies_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended
            state, ppid = stat.read_text().rsplit(")", 1)[1].split()[:2]
            if (state, ppid) == ("Z", str(parent)):
                found.append(int(stat.parent.name))
    return found


async def test_a_process_whose_zygote_died_dies_with_the_agent(agent: RunningAgent) -> None:
    rank = (await agent.spawn("serve")).pid
    killed_zygote(agent)
    agent.process.kill()
    await agent.process.wait()
    await gone([rank])
    assert not is_alive(rank)


async def test_a_zygote_that_dies_too_often_costs_no_rank(frail_agent: RunningAgent) -> None:
    rank = (await frail_agent.spawn("serve")).pid
    await replaced_zygote(frail_agent)
    await gone([killed_zygote(frail_agent)])
    refused = await frail_agent.spawn("serve", proc_id="b/0")
    assert refused.error.code == "unavailable"
    assert is_alive(rank)
    assert (await frail_agent.describe()).procs[0].pid == rank


async def test_what_a_zygote_did_not_begin_the_next_one_does(agent: RunningAgent) -> None:
    await agent.spawn("serve")
    (stopped,) = zygotes_of(agent)
    os.kill(stopped, signal.SIGSTOP)
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        spawning = tasks.create_task(agent.spawn("serve", proc_id="wpg_2/0"))
        while len((await agent.describe()).procs) < 2:  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0.01)
        os.kill(stopped, signal.SIGKILL)
    assert spawning.result().error.code == ""


async def replaced_zygote(agent: RunningAgent) -> None:
    """Kill the zygote; return when there is another."""
    dead = killed_zygote(agent)
    async with asyncio.timeout(120):
        while zygotes_of(agent) in ([], [dead]):  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.01)


def killed_zygote(agent: RunningAgent) -> int:
    """Kill the agent's only zygote and return its pid."""
    (dead,) = zygotes_of(agent)
    os.kill(dead, signal.SIGKILL)
    return dead


def zygotes_of(agent: RunningAgent) -> list[int]:
    return [pid for pid in descendants(agent.process.pid) if name_of(pid) == "plex-zygote"]


async def test_whoever_a_rank_leaves_behind_is_reaped(agent: RunningAgent) -> None:
    reply = await agent.spawn("with_child")
    os.kill(reply.pid, signal.SIGKILL)
    await agent.next_event("exited")
    await buried(int(reply.address))


async def test_a_dead_state_manager_is_replaced_and_the_ranks_stay(agent: RunningAgent) -> None:
    reply = await agent.spawn("serve")
    restarted = await kill_state_manager(agent)
    assert is_alive(reply.pid)
    assert (await agent.describe()).state_manager == restarted.state_manager_restarted.address


async def test_the_last_state_manager_starts_without_ranks_and_then_the_agent_ends(
    frail_agent: RunningAgent,
) -> None:
    reply = await frail_agent.spawn("serve")
    restarted = await kill_state_manager(frail_agent)
    assert not is_alive(reply.pid)
    assert (await frail_agent.next_event("exited")).index < restarted.index
    os.kill(state_manager_pid(await frail_agent.describe()), signal.SIGKILL)
    assert await frail_agent.process.wait() == 1


async def kill_state_manager(agent: RunningAgent) -> node_pb2.NodeEvent:
    before = await agent.describe()
    os.kill(state_manager_pid(before), signal.SIGKILL)
    restarted = await agent.next_event("state_manager_restarted")
    assert restarted.state_manager_restarted.address != before.state_manager
    return restarted


def state_manager_pid(node: node_pb2.NodeDescription) -> int:
    return int(node.state_manager.removeprefix("fake:"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_outlives_the_agent(agent: RunningAgent, number: signal.Signals) -> None:
    ranks = [(await agent.spawn("ignore_term", proc_id=f"wpg_{n}/0")).pid for n in range(2)]
    family = descendants(agent.process.pid)
    assert set(ranks) < set(family)
    assert len(family) == 4, "two ranks, a zygote, a state manager"
    agent.process.send_signal(number)
    await agent.process.wait()
    await gone(family)


async def test_an_agent_that_nobody_claims_ends_what_it_runs_and_leaves(tmp_path: Path) -> None:
    async with started(agent_config(tmp_path, orphan_us=5_000_000)) as agent:
        reply = await agent.spawn("serve")
        await agent.renew(ttl_us=600_000_000)
        below = descendants(agent.process.pid)
        assert reply.pid in below
        assert await agent.process.wait() == 0
        assert not any(is_alive(pid) for pid in below)
