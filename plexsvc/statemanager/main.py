"""The state manager's process: `python -m plexsvc.statemanager.main --config FILE`.

Prints one JSON line, `{"address": ..., "data_socket": ...}`, when it is ready. It dies with its
parent (parent-death signal); SIGTERM and SIGINT end it in order. Its memory is anonymous: nothing
is left behind but, after a kill, the socket's name, which the next start replaces, and what the
parent keeps (`--vault-fd`, `book`), which the next start adopts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from plexsvc import config as configs
from plexsvc import log as logs
from plexsvc.clock import SystemClock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.rpc.addresses import UNIX
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import read_keys
from plexsvc.rpc.services import add_servicer
from plexsvc.statelink.dataplane import allow_many_files
from plexsvc.statemanager import adoption, sending
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.byteserver import ByteServer
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.dataserver import DataServer
from plexsvc.statemanager.moves import StateMover
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.parking import Parking
from plexsvc.statemanager.servicer import SERVICE, StateManagerServicer
from plexsvc.tether import die_with_parent

log = Log(__name__)

_GRACE_S: Final = 2.0

BEAT_S: Final = 1.0
"""How often progress is shown."""


async def serve(config: StateManagerConfig, book: Book) -> None:
    """Serve until a signal asks to end; what the last state manager left is adopted first.

    Raises:
        PlexError: it cannot be adopted.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    node, entries = adoption.open_node(config, book)
    keys = read_keys(config.keys_file)
    clients, mover, parking = Clients(node), StateMover(node, clock=SystemClock()), Parking(node)
    adoption.adopt(node, clients, mover, entries)
    give_up = threading.Timer(config.resume_timeout_us / 1e6, clients.drop_pending)
    give_up.daemon = True
    give_up.start()
    data = DataServer(node, clients, config.runtime_dir / "data.sock", parking=parking)
    servicer = StateManagerServicer(
        node,
        clients=clients,
        mover=mover,
        parking=parking,
        clock=SystemClock(),
        data_socket=str(data.path),
        keys=keys,
    )
    server = new_server(keys, takes_nodes=("GetManifest",))
    add_servicer(server, SERVICE, servicer)
    where = config.listen or f"{UNIX}{config.runtime_dir}/state.sock"
    address = listen(server, where, keys, key="listen")
    answer = partial(
        sending.answer,
        publisher=node.publisher,
        arrivals=node.arrivals,
        relays=sending.Relays(config.site),
    )
    giving = ByteServer(answer, keys=keys, address=address)
    node.arrivals.address = giving.address
    await server.start()
    parking.start()
    print(  # noqa: T201 - the parent reads it
        json.dumps({"address": address, "data_socket": str(data.path)}), flush=True
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(beat(node))
            await stop.wait()
            beating.cancel()
    finally:
        give_up.cancel()
        await server.stop(_GRACE_S)
        data.close()
        giving.close()
        await loop.run_in_executor(None, servicer.close)
        await loop.run_in_executor(None, parking.close)
        # Nothing is freed: the kernel frees what is this process's alone, and arenas that the
        # parent keeps hold the state of ranks that go on with a successor.
        log.info("state manager ended", node_id=config.node_id)


async def beat(node: ManagedNode) -> None:
    """Show the parent that this process gets on: its event loop turns, its lock can be had."""
    loop = asyncio.get_running_loop()
    with suppress(PlexError):  # the parent is gone, and this process with it
        while True:
            await loop.run_in_executor(None, node.beat)
            await asyncio.sleep(BEAT_S)


def main() -> None:
    """Run one state manager."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="TOML file")
    parser.add_argument("--vault-fd", type=int, help="socket to who keeps the memory files")
    arguments = parser.parse_args()
    die_with_parent(os.getppid())
    logs.setup()
    allow_many_files()
    try:
        config = configs.load(arguments.config, StateManagerConfig)
        asyncio.run(serve(config, _book(arguments.vault_fd)))
    except PlexError as error:
        sys.exit(str(error))


def _book(vault_fd: int | None) -> Book:
    if vault_fd is None:
        return Book()
    # The vault hears of this process's end by this line: no child may keep it open.
    os.set_inheritable(vault_fd, False)
    return Book(socket.socket(fileno=vault_fd))


if __name__ == "__main__":
    main()
