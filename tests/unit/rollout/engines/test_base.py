"""The fake engine keeps the engine contract, so that the manager's tests mean something."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from plexclient.wire.v1 import rollout_pb2_grpc
from plexsvc.rpc.channels import open_channel
from tests.fakes.fake_instances import serving
from tests.rigs.engine_contract import EngineContract
from tests.rigs.keys import KEYS


class TestFakeEngine(EngineContract):
    @pytest.fixture
    async def stub(self) -> AsyncIterator[rollout_pb2_grpc.RolloutInstanceStub]:
        async with serving() as instance, open_channel(instance.address, KEYS) as channel:
            yield rollout_pb2_grpc.RolloutInstanceStub(channel)
