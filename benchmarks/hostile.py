"""What hostile callers cost another tenant's job: its longest pause while each load runs.

    python -m benchmarks.hostile [--seconds 10] [--tls] [--loads what_if garbage+connections ...]

A service with one device. The victim runs no-op operations one after the other; each attacker, in a
process of its own and with a token of its own (or none), does one thing as fast as it can. Loads
joined by `+` run at once. With `--tls` the router speaks TLS alone, and `handshakes` is tried too.
`--loads files` deploys each model directory of `tests/rigs/hostile_files.py` in turn. Printed for
each: the victim's operations, its longest pause in seconds, and what the attackers were answered.
One JSON line a load; the target is a pause of at most 2 s, and of 0.5 s for files.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

import plexclient as plex
import plexclient.link
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.rpc.certificates import TLS_NAME
from plexsvc.rpc.keys import make_keys
from tests.rigs import hostile_files
from tests.rigs.live_cluster import ROOT, SHARES_ALL, TRAIN, start_cluster

THREADS = 16
TENANTS = '[tokens]\n"victim" = "default"\n"attacker" = "mallory"\n\n'
NAMED = ("grpc.ssl_target_name_override", TLS_NAME)
FILES = ["plain", *(name for name in hostile_files.MAKE if name != "config nested deep")]

Attack = Callable[["Attacker"], str]


class Attacker:
    """One thread's connection, and what it has to attack with."""

    def __init__(self, address: str, model: Path) -> None:
        self.address, self.model = address, model
        certificate = model / "cert.pem"
        if certificate.exists():
            trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
            self.channel = grpc.secure_channel(address, trusted, options=[NAMED])
        else:
            self.channel = grpc.insecure_channel(address)
        self.dice = random.Random(0)

    def call(self, method: str, body: bytes, **more: Any) -> str:
        """Return the status of a call with these bytes."""
        asked = self.channel.unary_unary(f"/plexsvc.v1.Router/{method}")
        metadata = [("authorization", "Bearer attacker")]
        try:
            asked(body, timeout=10, metadata=metadata, **more)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def what_if(attacker: Attacker) -> str:
    """Ask where the longest cycle that is taken would go, on one device or a billion."""
    segments = [pb.CycleSegment(offset_us=i * 10**6, duration_us=5 * 10**5) for i in range(512)]
    devices = attacker.dice.choice([1, 10**9])
    job = pb.JobShape(num_devices=devices, period_us=512 * 10**6, segments=segments)
    return attacker.call("WhatIf", pb.WhatIfRequest(job=job).SerializeToString())


def questions(attacker: Attacker) -> str:
    """Ask everything that a tenant may ask."""
    method = attacker.dice.choice(["GetStatus", "GetPack", "Timeline", "GetReport", "ListNodes"])
    return attacker.call(method, b"")


def garbage(attacker: Attacker) -> str:
    """Send bytes that are no message, and connections that speak no protocol."""
    host, _, port = attacker.address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 2) as raw:
        raw.sendall(attacker.dice.randbytes(4096))
    return attacker.call("CreateDeployment", attacker.dice.randbytes(4096))


def oversized(attacker: Attacker) -> str:
    """Send what is too large, as it is and packed."""
    packed = attacker.dice.choice([grpc.Compression.Gzip, grpc.Compression.NoCompression])
    return attacker.call("CreateJob", bytes(64 << 20), compression=packed)


def slow_readers(attacker: Attacker) -> str:
    """Open streams, send nothing and read nothing."""
    open_stream = attacker.channel.stream_stream("/plexsvc.v1.Router/Operate")
    wait = threading.Event()
    call = open_stream(iter(lambda: wait.wait(0.2) and b"", None), timeout=0.5)
    wait.wait(0.1)
    call.cancel()
    return "CANCELLED"


def connections(attacker: Attacker) -> str:
    """Open connections, keep them a moment and leave."""
    host, _, port = attacker.address.rpartition(":")
    held: list[socket.socket] = []
    with contextlib.suppress(OSError):
        held.extend(socket.create_connection((host, int(port)), 2) for _ in range(20))
    for raw in held:
        raw.close()
    return str(len(held))


def handshakes(attacker: Attacker) -> str:
    """Agree on keys, and leave."""
    host, _, port = attacker.address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, int(port)), 2) as raw, context.wrap_socket(raw):
            return "AGREED"
    except OSError as error:
        return type(error).__name__


def deploys(attacker: Attacker) -> str:
    """Deploy a model from a directory that is no model."""
    job_id = f"odd-{attacker.dice.getrandbits(64)}"
    attacker.call("CreateJob", pb.CreateJobRequest(job_id=job_id, name="odd").SerializeToString())
    backend = attacker.dice.choice(["fsdp", "megatron"])
    spec = pb.DeploymentSpec(role="actor", backend=backend, model=str(attacker.model))
    request = pb.CreateDeploymentRequest(
        job_id=job_id, deployment_id=f"{job_id}/actor", name="actor", spec=spec
    )
    return attacker.call("CreateDeployment", request.SerializeToString())


LOADS: dict[str, Attack] = {
    load.__name__: load
    for load in (
        what_if,
        questions,
        garbage,
        oversized,
        slow_readers,
        connections,
        handshakes,
        deploys,
    )
}


def attack(name: str, address: str, *, seconds: float, model: Path) -> dict[str, int]:
    """Run a load from many threads; return how often it was answered what."""
    until, answers = time.monotonic() + seconds, collections.Counter[str]()

    def run(seed: int) -> None:
        attacker = Attacker(address, model)
        attacker.dice.seed(seed)
        while time.monotonic() < until:
            answers[LOADS[name](attacker)] += 1

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(answers)


def measure(name: str, actor: plex.Actor, *, address: str, seconds: float, model: Path) -> None:
    """Print what loads at once do to the victim; `model` is what is deployed."""
    command = [sys.executable, "-m", "benchmarks.hostile", "--address", address]
    command += ["--seconds", str(seconds), "--model", str(model), "--attack"]
    running = [
        subprocess.Popen([*command, load], stdout=subprocess.PIPE, text=True)
        for load in name.split("+")
    ]
    operations, longest_s, last_s = 0, 0.0, time.monotonic()
    while any(attacker.poll() is None for attacker in running):
        actor.zero_grad()
        now_s = time.monotonic()
        operations, longest_s, last_s = operations + 1, max(longest_s, now_s - last_s), now_s
    answers = [json.loads(attacker.communicate()[0] or "{}") for attacker in running]
    load = f"{name} of {model.name}" if name == "deploys" else name
    line = {"load": load, "operations": operations, "longest_pause_s": round(longest_s, 3)}
    print(json.dumps({**line, "answers": answers}), flush=True)


def use_tls(place: Path) -> str:
    """Have this process and its attackers trust a new certificate; return the router's keys."""
    keys = make_keys()
    (place / "cert.pem").write_text(keys.certificate)
    (place / "key.pem").write_text(keys.private_key)
    vars(plexclient.link)["OPTIONS"] = [*plexclient.link.OPTIONS, NAMED]
    return f'tls_cert = "{place}/cert.pem"\ntls_key = "{place}/key.pem"\n'


def main() -> None:
    """Run the loads one after the other, or one as the attacker's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    names = [*LOADS, "files"]
    parser.add_argument("--loads", nargs="*", default=names, help=", ".join(names))
    parser.add_argument("--tls", action="store_true", help="serve clients over TLS")
    parser.add_argument("--attack", choices=list(LOADS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        found = attack(given.attack, given.address, seconds=given.seconds, model=given.model)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as home:
        models = Path(home) / "models"
        model = hostile_files.make("config nested deep", models / "config nested deep")
        router = f'[router]\nmodel_roots = ["{ROOT}", "{models}"]\n'
        terms = SHARES_ALL + TENANTS + router + (use_tls(model) if given.tls else "")
        ca = str(model / "cert.pem") if given.tls else None
        with (
            start_cluster(Path(home), nodes={"node-a": [TRAIN]}, scheduler=terms) as live,
            plex.connect(live.address, token=live.token, ca=ca) as cluster,
            cluster.job("victim") as job,
        ):
            actor = job.deploy(
                "actor", model="", backend="noop", role="actor", optimizer=plex.AdamW(lr=1e-3)
            )
            for name in given.loads:
                directories = [model]
                if name == "files":
                    directories = [hostile_files.make(kind, models / kind) for kind in FILES]
                for one in directories:
                    load = "deploys" if name == "files" else name
                    measure(load, actor, address=live.address, seconds=given.seconds, model=one)


if __name__ == "__main__":
    main()
