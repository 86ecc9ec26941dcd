"""Examples are scripts beside the package: tests import them as their own folder does."""

from __future__ import annotations

from pathlib import Path

import pytest

import plexsvc


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(plexsvc.__file__).resolve().parents[1] / "examples"
    monkeypatch.syspath_prepend(str(folder))
    return folder
