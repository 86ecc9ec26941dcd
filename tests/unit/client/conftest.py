"""A fake router for each test, and a job on it with an actor and a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import plexclient as plex
from tests.fakes.fake_router import TOKEN, FakeRouter, running_fake_router

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"String": ""},
        "behavior": "Isolated",
        "invert": False,
    },
    "decoder": {"type": "Fuse"},
    "model": {
        "type": "WordLevel",
        "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "?": 4},
        "unk_token": "?",
    },
}


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRouter]:
    for name in ("PLEX_ADDRESS", "PLEX_TOKEN", "PLEX_JOB", "PLEX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    with running_fake_router() as running:
        yield running


@pytest.fixture
def cluster(router: FakeRouter) -> Iterator[plex.Cluster]:
    with plex.connect(router.address, token=TOKEN) as connection:
        yield connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What an RL loop holds."""

    job: plex.Job
    actor: plex.Actor
    rollout: plex.Rollout


@pytest.fixture
def loop(cluster: plex.Cluster) -> Iterator[Loop]:
    with cluster.job("test") as job:
        actor = job.deploy("actor", model="/model", backend="noop", optimizer=plex.AdamW())
        rollout = job.deploy("rollout", model=actor, backend="vllm")
        yield Loop(job=job, actor=actor, rollout=rollout)
