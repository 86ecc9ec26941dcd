"""Debian's headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.rigs.waiting import wait_until

TETHERED: Final = [sys.executable, "-m", "plexsvc.tether", str(os.getpid())]
OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--remote-debugging-port=0",
)
WAIT_S: Final = 30.0


class Tab:
    """One tab; what its console complained of is in `complaints`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.complaints: list[str] = []

    async def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": given})
        async with asyncio.timeout(WAIT_S):
            while True:
                told = json.loads((await self._socket.receive()).data)
                self._hear(told)
                if told.get("id") == number:
                    assert "error" not in told, told
                    found: dict[str, Any] = told["result"]
                    return found

    def _hear(self, told: dict[str, Any]) -> None:
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["params"]["exceptionDetails"])[:2000])
            case "Log.entryAdded" if told["params"]["entry"]["level"] == "error":
                entry = told["params"]["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    async def ask(self, expression: str) -> Any:
        """Return what an expression of JavaScript is: True for an element."""
        told = await self.call(
            "Runtime.evaluate",
            expression=f"(found => found instanceof Node || found)({expression})",
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return what an expression is once that is true."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not (found := await self.ask(expression)):  # noqa: ASYNC110 - the page's event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.ask("document.body.innerText")
            raise AssertionError(f"never: {expression}\n{self.complaints}\n{text}") from None
        return found

    async def go(self, url: str) -> None:
        """Open a page."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def size(self, width: int, height: int) -> None:
        """Give the window a size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)

    async def shot(self, path: Path) -> None:
        """Keep a picture of the window."""
        told = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(told["data"]))


@asynccontextmanager
async def opened(profile: Path) -> AsyncIterator[Tab]:
    """Start Chromium with one tab; its profile is an empty directory."""
    with _running(profile) as port:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            async with http.get("/json/list") as reply:
                (target,) = [one for one in await reply.json() if one["type"] == "page"]
            address = target["webSocketDebuggerUrl"]
            async with http.ws_connect(address, max_msg_size=256 << 20) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab


@contextmanager
def _running(profile: Path) -> Iterator[int]:
    """Run Chromium; yield the port of its protocol."""
    program = shutil.which("chromium")
    assert program, "the page is tested in Chromium, which is not here: apt-get install chromium"
    log, place = profile / "log", profile / "DevToolsActivePort"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*TETHERED, program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_until(lambda: place.exists() and "\n" in place.read_text(), what=f"Chromium ({log})")
        yield int(place.read_text().split()[0])
    finally:
        process.kill()
        process.wait(timeout=20)
