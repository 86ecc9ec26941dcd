"""The functions that documents name are those that an operation and a batch pass in a real run."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import plexclient as plex
from tests.rigs import call_trace
from tests.rigs.call_trace import Callers, Name
from tests.rigs.live_cluster import LiveCluster, start_cluster
from tests.rigs.tiny_models import make_qwen3

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text()
NAMED: Final = re.compile(r"(?<!\()`([\w/]+\.py)::(?:\w+\.)*(\w+)`")
"""A function that hands the work on; one in parentheses is only asked on the way."""

LOOPS: Final = {"<lambda>", "_carry", "_run", "main", "run"}
"""Last names of what calls a function as an event loop or a thread would."""

REPEATS: Final = 5
"""Times that the same work is traced. What else goes on calls the same functions now and then, and
may take a step of it along: what counts was called so in most of them."""

OPERATION, INLINE, UPLOADED = 1, 2, 3
NODES = {"node-a": ['{ kind = "train", bytes_total = 1073741824 }']}


def life(title: str, *, but_for: Sequence[int] = ()) -> set[Name]:
    """Return the functions that the story of a life hands the work through, in all steps but some.

    What passes no upload is not held to its steps: calls beside the work take these, too.
    """
    text = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    steps = {int(step.partition(".")[0]): step for step in re.split(r"\n(?=\d+\. )", text)[1:]}
    told = "".join(step for number, step in steps.items() if number not in but_for)
    return {(file, name) for file, name in NAMED.findall(told)}


def said(what: str) -> int:
    """Return the number that the page says of a path."""
    found = re.search(rf"{what}[^.]*?passes (\d+)", " ".join(PAGE.split()))
    assert found is not None, what
    return int(found.group(1))


def batch(sequences: int, length: int) -> plex.Batch:
    tokens = sequences * length
    rng = np.random.default_rng(0)
    return plex.Batch(
        tokens=rng.integers(2, 50, tokens).astype(np.int32),
        cu_seqlens=np.arange(0, tokens + 1, length, dtype=np.int32),
        target_tokens=rng.integers(2, 50, tokens).astype(np.int32),
        logprobs=np.full(tokens, -4.0, np.float32),
        advantages=np.full(tokens, 1 / tokens, np.float32),
        mask=np.ones(tokens, np.float32),
    )


def run(live: LiveCluster, model: Path, home: Path) -> None:
    """Run each kind of work once untraced, which opens things, then a few times."""
    with live.connect() as cluster, cluster.job("traced") as job:
        optimizer = plex.AdamW(lr=1e-4)
        actor = job.deploy("actor", model=str(model), backend="megatron", optimizer=optimizer)
        inline, uploaded = batch(2, 32), batch(64, 200)
        works = {
            OPERATION: actor.noop,
            INLINE: partial(actor.forward_backward, inline),
            UPLOADED: partial(actor.forward_backward, uploaded),
        }
        for number, work in works.items():
            work()
            for repeat in range(REPEATS):
                with call_trace.phase(home, 1 + number * REPEATS + repeat):
                    work()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Callers]:
    """Return what was called for a noop, for a batch inside its operation, and for one beside."""
    home, model = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("models") / "model"
    make_qwen3(model, seed=0)
    call_trace.prepare(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (home, ROOT, ROOT / "client"))))
        with start_cluster(home, nodes=NODES) as live, call_trace.started(home):
            run(live, model, home)
    found = call_trace.calls(home)
    return {
        number: usual([found[1 + number * REPEATS + repeat] for repeat in range(REPEATS)])
        for number in (OPERATION, INLINE, UPLOADED)
    }


def usual(repeats: Sequence[Callers]) -> Callers:
    """Return the functions that most repeats called, and who called each in most."""
    functions = Counter(function for one in repeats for function in one)
    pairs = Counter((f, caller) for one in repeats for f in one for caller in one[f])
    most = len(repeats) // 2
    return {
        function: {caller for (f, caller), n in pairs.items() if f == function and n > most}
        for function, count in functions.items()
        if count > most
    }


PATHS = {
    "An operation": (OPERATION, life("An operation")),
    "inside the operation": (
        INLINE,
        life("An operation") | life("A training batch", but_for=range(2, 8)),
    ),
    "uploaded beside it": (UPLOADED, life("An operation") | life("A training batch")),
}


@pytest.mark.parametrize("what", PATHS)
def test_a_path_passes_the_functions_that_are_named(what: str, traced: dict[int, Callers]) -> None:
    number, named = PATHS[what]
    edges = traced[number]
    passed = named & edges.keys()
    hidden = {f: edges[f] for f in passed if _is_hidden(edges[f], named)}
    assert hidden == {}, "a function of the path is called by one that is not named"
    assert len(passed) == said(what), sorted(named - passed)


def _is_hidden(callers: set[Name], named: set[Name]) -> bool:
    """Return whether a function is reached through others than the named ones and loops."""
    return bool(callers) and not any(f in named or f[1] in LOOPS for f in callers)
