"""GPUs of this machine by a driver that stands in for CUDA's."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink import cuda
from tests.fakes.fake_cuda import Code, FakeCuda


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(cuda, "load_api", lambda: fake)
    return fake


def test_a_gpu_is_called_by_its_name_alone(fake: FakeCuda) -> None:
    assert cuda.gpus() == [cuda.Gpu(index=0, name="Fake H200", nbytes=fake.nbytes)]


def test_a_gpu_that_is_not_there_is_the_configurations_error(fake: FakeCuda) -> None:
    fake.fail_at, fake.fail_with = 2, Code.INVALID_DEVICE  # the first call is cuInit
    with pytest.raises(PlexError, match="cuDeviceGet on GPU 3") as caught:
        cuda.CudaDriver(3)
    assert caught.value.code is ErrorCode.BAD_REQUEST
