"""A forked process that ends: what its log says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node import child
from plexsvc.node.messages import ForkOrder


def refuse(config: dict[str, object], ready: Callable[[str], None]) -> None:
    del ready
    raise PlexError(ErrorCode.BAD_REQUEST, f"vLLM cannot run {config['model']}")


def fail(config: dict[str, object], ready: Callable[[str], None]) -> None:
    del ready
    raise KeyError(config["model"])


@pytest.mark.parametrize(("name", "is_bug"), [("refuse", False), ("fail", True)])
def test_a_refusal_is_logged_without_a_traceback_and_a_bug_with_one(
    name: str, is_bug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    order = ForkOrder(
        token=1,
        name=name,
        entrypoint=f"{__name__}:{name}",
        config={"model": "/m"},
        env={},
        log_path="",
        ready_path="",
    )
    assert child._call(order, ready_fd=-1) == 1
    said = capsys.readouterr().err
    assert ("Traceback" in said) == is_bug
    assert "/m" in said
