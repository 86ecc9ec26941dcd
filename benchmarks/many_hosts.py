"""How long many hosts take to join at once, and what they cost the service from then on.

    python -m benchmarks.many_hosts [--hosts 64] [--seconds 30] [--devices 1]

A service and 64 simulated hosts: each is a real node agent on an address of its own of the loopback
interface, with key pair, token and certificate of its own. It has no warm images, and a stand-in
for its state manager. Two processes run half of the agents each. `joined_s` is the time from the
moment that all ask for their certificates until the service counts all as up; `joining_cores` and
`idle_cores` are what the service's process worked meanwhile, and then over `--seconds` while it
kept their leases; `others_cores` is what its further processes worked then.

A scrape of the metrics then has `series` series, at most 20,000 (`--devices 50` offers more) and
takes `scrape_s`. `call_ms` are the median and the worst of a short call that is made again and
again, one at a time, during scrapes, and `quiet_ms` without any: the difference is how long a
scrape holds up the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import grpc.aio

from benchmarks.load import family, worked_ms
from benchmarks.service import TETHERED, report
from plexclient.link import bearer
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import service_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.node.agent import serve
from plexsvc.node.config import AgentConfig, DeviceConfig
from plexsvc.node.join import JoinConfig, PoolConfig, keys_file, place_of, private_key, take_keys
from plexsvc.rpc import certificates
from plexsvc.statelink.dataplane import allow_many_files
from tests.rigs.live_cluster import TRAIN, LiveCluster, Service
from tests.rigs.waiting import wait_until

PROCESSES = 2
HTTP = 'router.http_listen = "127.0.0.1:0"\n'
STATE_MANAGER = """
import sys, time
print('{"address": "%s:1", "data_socket": "/nowhere"}', flush=True)
time.sleep(3600)
"""
TRAINS = DeviceConfig(kind="train", bytes_total=1 << 30)


async def be_host(number: int, *, router: str, token: str, directory: Path, devices: int) -> None:
    """Join, and serve until cancelled."""
    name, host = f"host-{number}", f"127.0.1.{number + 1}"
    place = directory / name
    place.mkdir(mode=0o700, parents=True)
    request = pb.JoinNodeRequest(request=certificates.request_for(private_key(place), node_id=name))
    async with grpc.aio.insecure_channel(router) as channel, asyncio.TaskGroup() as tasks:
        join = service_pb2_grpc.RouterStub(channel).JoinNode
        told = await join(request, metadata=(bearer(token),), timeout=120)
        config = JoinConfig(
            node_id=name,
            listen=f"{host}:50061",
            directory=directory,
            certificate=told.certificate,
            authority=told.authority,
            version=version("plexsvc"),
            pool=PoolConfig(devices=(TRAINS,) * devices),
        )
        take_keys(config)
        agent = AgentConfig(
            node_id=name,
            devices=config.pool.devices,
            runtime_dir=place_of(config),
            listen=config.listen,
            keys_file=keys_file(config),
            images=(),
            state_manager_argv=(sys.executable, "-S", "-c", STATE_MANAGER % host),
            state_manager_silence_us=3_600_000_000,
        )
        tasks.create_task(serve(agent, clock=SystemClock()))
        await until_listening(host)
        request.agent = agent.listen
        await join(request, metadata=(bearer(token),), timeout=120)


async def until_listening(host: str) -> None:
    """Return when the agent takes connections."""
    async with asyncio.timeout(120):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, 50061)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def be_hosts(
    first: int, *, router: str, tokens: list[str], directory: Path, devices: int
) -> None:
    """Be as many hosts as there are tokens."""
    async with asyncio.TaskGroup() as tasks:
        for number, token in enumerate(tokens, first):
            host = be_host(number, router=router, token=token, directory=directory, devices=devices)
            tasks.create_task(host)


def token(live: LiveCluster) -> str:
    """Return a new token for a node."""
    request = pb.CreateTokenRequest(scope="join", lifetime_us=3_600_000_000)
    return str(live._call("CreateToken", request).secret)


def up(live: LiveCluster) -> int:
    """Return how many nodes are up."""
    return sum(node.state == "up" for node in live.nodes())


def start_hosts(
    live: LiveCluster, scratch: Path, *, count: int, devices: int
) -> list[subprocess.Popen[str]]:
    """Start the processes of all hosts; each begins with a line on its standard input."""
    share = count // PROCESSES
    started = []
    for number in range(PROCESSES):
        mine = [token(live) for _ in range(share)]
        command = ["-m", "benchmarks.many_hosts", "--devices", str(devices)]
        command += ["--serve", str(number * share), live.address]
        process = subprocess.Popen(
            [*TETHERED, *command, str(scratch), *mine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started.append(process)
    return started


def scrape(live: LiveCluster) -> int:
    """Return how many series a scrape has."""
    request = urllib.request.Request(
        f"http://{live.http}/metrics", headers={"Authorization": f"Bearer {live.token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return sum(not line.startswith(b"#") for line in answer)


def calls_ms(live: LiveCluster, *, until: Callable[[], bool]) -> list[float]:
    """Return what short calls took, made one after another until something holds."""
    found = []
    with grpc.insecure_channel(live.address) as channel:
        stub = service_pb2_grpc.RouterStub(channel)
        while not until():
            since_s = time.monotonic()
            stub.ListJobs(pb.ListJobsRequest(), metadata=(bearer(live.token),), timeout=30)
            found.append((time.monotonic() - since_s) * 1e3)
    return found[1:]


def scraped(live: LiveCluster) -> dict[str, object]:
    """Return what scrapes take, and what they cost others."""
    series, scrapes_s = scrape(live), []
    due_s = time.monotonic() + 10
    quiet_ms = calls_ms(live, until=lambda: time.monotonic() > due_s)

    def scrape_often() -> None:
        for _ in range(10):
            since_s = time.monotonic()
            scrape(live)
            scrapes_s.append(time.monotonic() - since_s)

    scraping = threading.Thread(target=scrape_often)
    scraping.start()
    busy_ms = calls_ms(live, until=lambda: not scraping.is_alive())
    return {
        "series": series,
        "scrape_s": round(statistics.median(scrapes_s), 3),
        "quiet_ms": [round(statistics.median(quiet_ms), 2), round(max(quiet_ms), 1)],
        "call_ms": [round(statistics.median(busy_ms), 2), round(max(busy_ms), 1)],
    }


def measure(live: LiveCluster, scratch: Path, *, count: int, seconds: float, devices: int) -> None:
    """Have the hosts join; report."""
    hosts = start_hosts(live, scratch, count=count, devices=devices)
    before_s, since_s = worked_ms([live.pid]) / 1e3, time.monotonic()
    for process in hosts:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    wait_until(lambda: up(live) == count + 1, what="all are up", timeout_s=300)
    joined_s = time.monotonic() - since_s
    joining_s = worked_ms([live.pid]) / 1e3 - before_s
    others = family(live.pid)
    before, before_s, since_s = (
        worked_ms(others) / 1e3,
        worked_ms([live.pid]) / 1e3,
        time.monotonic(),
    )
    time.sleep(seconds)  # noqa: TID251 - the service keeps leases meanwhile
    took_s = time.monotonic() - since_s
    idle_s, others_s = worked_ms([live.pid]) / 1e3 - before_s, worked_ms(others) / 1e3 - before
    scrapes = scraped(live)
    for process in hosts:
        process.terminate()
        process.wait(60)
    report(
        hosts=count,
        joined_s=round(joined_s, 1),
        joining_cores=round(joining_s / joined_s, 2),
        idle_cores=round(idle_s / took_s, 3),
        others_cores=round(others_s / took_s, 3),
        **scrapes,
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        first, router, directory, *tokens = options.serve
        allow_many_files()
        print("ready", flush=True)
        sys.stdin.readline()
        served = be_hosts(
            int(first),
            router=router,
            tokens=tokens,
            directory=Path(directory),
            devices=options.devices,
        )
        asyncio.run(served)
        return
    with (
        tempfile.TemporaryDirectory(prefix="plex-many-") as scratch,
        Service(Path(scratch), nodes={"here": [TRAIN]}, extra=HTTP) as service,
    ):
        measure(
            service.live,
            Path(scratch) / "h",
            count=options.hosts,
            seconds=options.seconds,
            devices=options.devices,
        )


if __name__ == "__main__":
    main()
