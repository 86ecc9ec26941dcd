"""Holders of versions whose bytes tests change on their way to a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from plexclient.wire.v1 import statemanager_pb2, statemanager_pb2_grpc
from plexclient.wire.v1.statemanager_pb2 import ReadVersionRequest, VersionChunk, VersionManifest
from plexsvc.statelink.byteline import ByteLine, LineBrokenError, checked, dial
from plexsvc.statemanager.byteserver import ByteServer
from plexsvc.weights.checksums import BLOCK_BYTES
from tests.rigs.keys import KEYS

TAKES_PINGS = (("grpc.http2.max_ping_strikes", 0),)


@dataclass(slots=True)
class Passed:
    """What a holder's state manager sent, on its way."""

    line: ByteLine
    """To the reader."""
    chunk: VersionChunk
    data: bytearray

    def send(self) -> None:
        self.line.send(self.chunk)
        self.line.send_bytes(self.data)


class Between(statemanager_pb2_grpc.StateManagerServicer):
    """Stands between a state manager and its readers, and has `turn` change what passes."""

    def __init__(
        self,
        stub: statemanager_pb2_grpc.StateManagerStub,
        turn: Callable[[Passed], None],
    ) -> None:
        self._stub = stub
        self._turn = turn
        self._manifest = VersionManifest()
        self.bytes_at = ""
        self.told: list[ReadVersionRequest] = []
        self.sent_bytes = 0

    def GetManifest(
        self, request: statemanager_pb2.GetManifestRequest, context: object
    ) -> VersionManifest:
        del context
        self._manifest = self._stub.GetManifest(request, timeout=30)
        reply = VersionManifest()
        reply.CopyFrom(self._manifest)
        reply.bytes_at = self.bytes_at
        return reply

    def answer(self, line: ByteLine, request: ReadVersionRequest) -> None:
        self.told.append(request)
        manifest = self._manifest
        try:
            with dial(manifest.bytes_at, KEYS) as behind:
                behind.send(request)
                for _ in request.lows or range(request.offset, manifest.nbytes, BLOCK_BYTES):
                    chunk = checked(behind.receive(VersionChunk))
                    data = bytearray(chunk.nbytes)
                    behind.receive_into(memoryview(data))
                    passed = Passed(line, chunk, data)
                    self._turn(passed)
                    self.sent_bytes += len(data)
                    passed.send()
                    if chunk.relay:
                        return
                line.wait_for_end()
        except LineBrokenError as error:
            raise EOFError(str(error)) from error


@contextmanager
def between(
    stub: statemanager_pb2_grpc.StateManagerStub, address: str, turn: Callable[[Passed], None]
) -> Iterator[Between]:
    """Serve one at an address."""
    servicer = Between(stub, turn)
    server = grpc.server(ThreadPoolExecutor(8), options=TAKES_PINGS)
    statemanager_pb2_grpc.add_StateManagerServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    giving = ByteServer(servicer.answer, keys=KEYS, address=address)
    servicer.bytes_at = giving.address
    server.start()
    try:
        yield servicer
    finally:
        giving.close()
        server.stop(None).wait()
