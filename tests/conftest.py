"""Options and fixtures every test may use: slow tests, the shared cluster, tiny models."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.rigs.live_cluster import SHARES_ALL, LiveCluster, start_cluster
from tests.rigs.s3_server import BUCKET, S3Server, s3_line
from tests.rigs.tiny_models import make_qwen3

# No deadlines: a loaded machine is no failure. The same code gets the same examples, so that a run
# tells about a change; `--search` draws new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("same")


FIRST: Final = ("chaos", "system", "process")
ON_ONE_CLUSTER: Final = frozenset(
    {
        "process/demo/test_controllers",
        "system/test_bad_input",
        "system/test_checkpoints",
        "system/test_client_alone",
        "system/test_custom_loss",
        "system/test_device_budget",
        "system/test_durable",
        "system/test_groups",
        "system/test_host_optimizer",
        "system/test_instances",
        "system/test_kills",
        "system/test_lent",
        "system/test_lora",
        "system/test_resumed",
        "system/test_retries",
        "system/test_rl_loop",
        "system/test_roles",
        "system/test_router_apart",
        "system/test_same_result",
        "system/test_sets",
        "system/test_spot",
        "system/test_tool_loop",
    }
)
"""Files of tests that use `cluster`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--search",
        action="store_true",
        help="draw new examples for properties, and try every point",
    )
    parser.addoption("--run-slow", action="store_true", help="also run tests longer than a second")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # of thousands of tests that are collected nothing is garbage
    if config.getoption("--search"):
        settings.load_profile("search")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_begins_late)
    if not config.getoption("--search"):
        _leave_out(config, items)
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="longer than a second; pass --run-slow (make test does)")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is not rare, and every n-th case of tests that say so; pytest counts the others."""
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("every")
        function = item.nodeid.partition("[")[0]
        is_kept = marker is None or seen[function] % marker.args[0] == 0
        is_kept = is_kept and item.get_closest_marker("rare") is None
        (kept if is_kept else left_out).append(item)
        seen[function] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _begins_late(item: pytest.Item) -> int:
    """Have files that take minutes begin first, so that no process ends long before the others."""
    kind = item.path.relative_to(Path(__file__).parent).parts[0]
    return FIRST.index(kind) if kind in FIRST else len(FIRST)


class OneCluster(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives processes files; those that share `cluster` are as one, so that one is started."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        name = file.removeprefix("tests/").removesuffix(".py")
        return "" if name in ON_ONE_CLUSTER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return OneCluster(config, log)


@pytest.fixture(scope="session")
def every(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """Of points to try one by one: every so many, or each of them with `--search`."""
    is_search = request.config.getoption("--search")
    return lambda nth: 1 if is_search else nth


@pytest.fixture(scope="session")
def s3_address() -> Iterator[S3Server]:
    """Where `s3` will be."""
    with s3_line() as server:
        yield server


@pytest.fixture(scope="session")
def s3(s3_address: S3Server) -> Iterator[S3Server]:
    """One object store for all tests."""
    with s3_address.running():
        yield s3_address


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, s3_address: S3Server
) -> Iterator[LiveCluster]:
    """One real service for all system tests: `plexctl up`, two nodes, warm zygotes.

    Checkpoints of tenant `ops` go to `s3`.
    """
    tables = f'{SHARES_ALL}[router.checkpoint_stores]\nops = "s3://{BUCKET}/checkpoints"\n'
    place = tmp_path_factory.mktemp("cluster")
    with start_cluster(place, scheduler=tables, environment=s3_address.environment) as live:
        yield live


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tied Qwen3 of about 0.1 M parameters with a character tokenizer, fp32."""
    return make_qwen3(tmp_path_factory.mktemp("models") / "tiny", seed=0)


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like `tiny_model` but twice the state, for layouts that split it over two devices."""
    return make_qwen3(tmp_path_factory.mktemp("models") / "wide", seed=1, layers=4)


@pytest.fixture(scope="session")
def moe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3-MoE whose half of the experts, and the rest, take as much as `tiny_model`."""
    from tests.rigs.model_families import BOTH, make_model

    case = {**BOTH["qwen3_moe"], "moe_intermediate_size": 64, "vocab_size": 50}
    return make_model(tmp_path_factory.mktemp("models") / "moe", case)
