"""A sandbox is given up only when it fails again and again."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.reward.sandbox import opening


@pytest.mark.parametrize(("failures", "is_available"), [(0, True), (1, True), (9, False)])
def test_a_try_that_was_killed_does_not_end_a_workers_sandbox(
    failures: int, is_available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [PlexError(ErrorCode.UNAVAILABLE, "its keeper was killed")] * failures

    class FakeSandbox:
        def run(self, argv: list[str], **_rest: object) -> None:
            assert argv
            if left:
                raise left.pop()

        def is_available(self) -> bool:
            return True

    monkeypatch.setattr(opening, "NamespaceSandbox", FakeSandbox)
    found = opening.open_sandbox()
    assert found.is_available() is is_available
    assert is_available or "its keeper was killed" in found.describe()


def test_a_sandbox_that_is_known_to_work_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeSandbox:
        def run(self, argv: list[str], **_rest: object) -> None:
            raise AssertionError(argv)

        def is_available(self) -> bool:
            return True

    monkeypatch.setattr(opening, "NamespaceSandbox", FakeSandbox)
    assert opening.open_sandbox(is_known_to_work=True).is_available()
