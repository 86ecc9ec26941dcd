"""S3 of this machine: moto's server, as a process, behind a line that tests cut."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tests.rigs.chaos_proxy import ChaosProxy, Faults, running_proxy
from tests.rigs.waiting import wait_until

BUCKET = "plex"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """An object store with one bucket."""

    line: ChaosProxy
    address: str
    """Of the server itself."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What processes that use it have in their environment."""
        return {
            "FSSPEC_S3_ENDPOINT_URL": f"http://{self.line.address}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def demand_credentials(self, *, demands: bool) -> None:
        """Refuse keys of nobody from now on, as those of `environment` are; or take them again."""
        many = b"0" if demands else b"Infinity"
        self.ask("/moto-api/reset-auth", body=many, method="POST")

    def objects(self) -> list[str]:
        """Return the names of all objects, sorted."""
        with urllib.request.urlopen(f"{self.address}/{BUCKET}?list-type=2") as reply:
            return sorted(re.findall(r"<Key>(.*?)</Key>", reply.read().decode()))

    def ask(self, path: str, *, body: bytes, method: str) -> None:
        """Call the server itself."""
        kind = {"Content-Type": "application/octet-stream"}
        call = urllib.request.Request(self.address + path, body, kind, method=method)
        urllib.request.urlopen(call).close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server, with an empty bucket."""
        port = self.address.rpartition(":")[2]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_until(self._has_bucket, what="the object store up")
            yield
        finally:
            process.kill()
            process.wait()

    def _has_bucket(self) -> bool:
        try:
            self.ask(f"/{BUCKET}", body=b"", method="PUT")
        except urllib.error.URLError:
            return False
        return True


@contextmanager
def s3_line() -> Iterator[S3Server]:
    """Yield where an object store will be, which does not run yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    with running_proxy(where, seed=0, faults=Faults()) as line:
        yield S3Server(line=line, address=f"http://{where}")
