"""`cuda.bindings.driver` of processes that have `tests/fakes/fake_gpu` first on their path."""

from __future__ import annotations

from typing import Any

from tests.fakes.fake_cuda import FakeCuda

_FAKE = FakeCuda()


def __getattr__(name: str) -> Any:
    return getattr(_FAKE, name)
