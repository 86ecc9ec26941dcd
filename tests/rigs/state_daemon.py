"""Starts and drives a real state manager daemon and real client processes for tests."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from plexclient.wire.v1 import common_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.errors import PlexError
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.keys import KEYS, keys_file

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120

_COPIES = itertools.count(1)


class Client:
    """A client process under the test's command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def __call__(self, do: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"client process ended with {self.process.wait()}")
        answer = json.loads(line)
        if "code" in answer:
            raise PlexError(answer["code"], answer["message"], **answer["facts"])
        return answer["ok"]


class Daemon:
    """The daemon, a stub to it, and the clients started so far."""

    node_id = "n0"

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        *,
        keys: str,
        devices: int,
        node_id: str = "n0",
        device_bytes: int = 4 << 20,
    ) -> None:
        self._stack = stack
        self.node_id = node_id
        config = directory / "sm.toml"
        device = f"[[devices]]\nindex = {{}}\nbytes_total = {device_bytes}\n"
        text = f'node_id = "{node_id}"\nruntime_dir = "{directory}"\n{keys}\n'
        text += f'keys_file = "{keys_file(directory)}"\n'
        config.write_text(text + "".join(device.format(i) for i in range(devices)))
        argv = [sys.executable, "-m", "plexsvc.statemanager.main", "--config", str(config)]
        self.process = self._spawn(argv)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())
        channel = stack.enter_context(open_blocking_channel(self.ready["address"], KEYS))
        self.stub = statemanager_pb2_grpc.StateManagerStub(channel)

    def client(self, wpg_id: str, *, connect: bool = True, **identity: Any) -> Client:
        client = Client(self._spawn([sys.executable, "-m", "tests.rigs.state_rank"]))
        given = {
            "rank": 0,
            "incarnation": 1,
            "device_index": 0,
            "tenant": "tenant",
            "job_id": "job",
            **identity,
        }
        if connect:
            client("connect", socket=self.ready["data_socket"], wpg_id=wpg_id, **given)
        return client

    def move(
        self, wpg_id: str, to: str, *, move_id: bytes = b"", **fence: int
    ) -> statemanager_pb2.MoveReply:
        request = statemanager_pb2.MoveRequest(
            wpg_id=wpg_id,
            to=f"RESIDENCY_{to}",
            fence=common_pb2.Fence(**fence),
            move_id=move_id,
        )
        return self.stub.Move(request, timeout=DEADLINE_S)

    def digests(
        self,
        wpg_id: str,
        *,
        copies: statemanager_pb2.PublishedVersion | None = None,
        fence: common_pb2.Fence | None = None,
    ) -> dict[str, str]:
        with ExitStack() as stack:
            if copies is None:
                made = copied(self.stub, wpg_id, node_id=self.node_id, fence=fence)
                copies = stack.enter_context(made)
            request = statemanager_pb2.DigestRequest(wpg_id=wpg_id, copies=copies, fence=fence)
            reply = self.stub.Digest(request, timeout=DEADLINE_S)
        assert not reply.HasField("error"), reply.error
        return dict(reply.digests)

    def materialize(
        self, wpg_id: str, path: Path, **fields: Any
    ) -> statemanager_pb2.MaterializeReply:
        """Copy the state and write a checkpoint; return the last reply."""
        with ExitStack() as stack:
            if "copies" not in fields:
                fields["copies"] = stack.enter_context(
                    copied(self.stub, wpg_id, node_id=self.node_id)
                )
            fields = {"root": str(path.parent), "model_root": "/", "tenant": "lab"} | fields
            request = statemanager_pb2.MaterializeRequest(wpg_id=wpg_id, path=str(path), **fields)
            return list(self.stub.Materialize(iter([request]), timeout=DEADLINE_S))[-1]

    def inventory(self) -> statemanager_pb2.InventoryReply:
        return self.stub.Inventory(statemanager_pb2.InventoryRequest(), timeout=DEADLINE_S)

    def publish(self, wpg_id: str, version: int, **fields: Any) -> statemanager_pb2.PublishReply:
        request = statemanager_pb2.PublishRequest(
            wpg_id=wpg_id, deployment_id="job/actor", version=version, **fields
        )
        return self.stub.Publish(request, timeout=DEADLINE_S)

    def published(
        self, wpg_id: str, version: int, **fields: Any
    ) -> statemanager_pb2.VersionManifest:
        """Publish and return the manifest."""
        reply = self.publish(wpg_id, version, **fields)
        assert not reply.HasField("error"), reply.error
        request = statemanager_pb2.GetManifestRequest(deployment_id="job/actor", version=version)
        manifest = self.stub.GetManifest(request, timeout=DEADLINE_S)
        assert manifest.nbytes == reply.nbytes
        return manifest

    def _spawn(self, argv: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(_end, process)
        return process


@contextmanager
def copied(
    stub: statemanager_pb2_grpc.StateManagerStub,
    wpg_id: str,
    *,
    node_id: str = "n0",
    fence: common_pb2.Fence | None = None,
) -> Iterator[statemanager_pb2.PublishedVersion]:
    """Copy all of a WPG's state, as the scheduler does before a digest or a checkpoint."""
    copies = statemanager_pb2.PublishedVersion(
        deployment_id=f"{wpg_id}~copied", version=next(_COPIES)
    )
    copies.holders.add(node_id=node_id)
    name: dict[str, Any] = {
        "deployment_id": copies.deployment_id,
        "version": copies.version,
        "fence": fence,
    }
    request = statemanager_pb2.PublishRequest(
        wpg_id=wpg_id, complete=True, mid_window=True, gradients=True, **name
    )
    reply = stub.Publish(request, timeout=DEADLINE_S)
    assert not reply.HasField("error"), reply.error
    yield copies
    stub.ReleaseVersion(statemanager_pb2.ReleaseVersionRequest(**name), timeout=DEADLINE_S)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(BrokenPipeError):  # a command was under way when it died
            stream.close()
