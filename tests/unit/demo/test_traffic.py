"""Traffic of the demo: its shape is the seed's at any rate, and what is not answered shows."""

from __future__ import annotations

import http.server
import itertools
import json
import threading
from statistics import fmean
from typing import Any

from plexsvc.demo.traffic import ANSWER_TOKENS, PROMPT_TOKENS, Traffic, requests
from tests.rigs.waiting import wait_until


def test_requests_come_once_a_second_in_the_mean_in_bursts() -> None:
    first = list(itertools.islice(requests(0, vocab_size=30), 20_000))
    assert first[:50] == list(itertools.islice(requests(0, vocab_size=30), 50))
    gaps = [one.after_s for one in first]
    assert abs(fmean(gaps) - 1) < 0.05
    assert fmean(gap**2 for gap in gaps) > 2.3, "burstier than by chance alone, which has 2"
    assert {len(one.prompt) for one in first} == set(range(*PROMPT_TOKENS))
    assert {one.answer_tokens for one in first} == set(range(*ANSWER_TOKENS))
    assert {token for one in first for token in one.prompt} == set(range(3, 30))


def test_every_request_is_counted_and_those_that_fail_are_not_answered() -> None:
    seen: list[dict[str, Any]] = []

    class FakeApplication(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append(body)
            self.send_response(500 if len(seen) == 2 else 200)
            self.end_headers()
            usage = {"completion_tokens": body["max_tokens"]}
            self.wfile.write(json.dumps({"usage": usage}).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), FakeApplication) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        with Traffic(address, name="chat", rate=1000, seed=0, vocab_size=30) as traffic:
            wait_until(lambda: len(seen) >= 4, what="requests come")
        server.shutdown()
        serving.join()
    assert traffic.sent == len(seen)
    assert traffic.answered == traffic.sent - 1
    assert all(body["model"] == "chat" and body["ignore_eos"] for body in seen)
