"""A client without the SDK's care: sends exactly the messages a test made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from plexclient.errors import PlexError
from plexclient.ids import new_operation_id
from plexclient.wire import errors, tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2, service_pb2_grpc
from plexsvc.rpc.errors import error_from

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(slots=True)
class RawClient:
    """Talks to a router for one deployment; keeps its own sequence numbers."""

    channel: grpc.Channel
    token: str
    job_id: str
    deployment_id: str
    next_seq: int = 1

    def operation(
        self,
        payload: Arrays | None = None,
        **body: Any,
    ) -> tuple[operations_pb2.Operation, bytes]:
        """Return the next operation and the bytes to stage (empty when its payload is inline)."""
        operation = operations_pb2.Operation(
            operation_id=new_operation_id(),
            job_id=self.job_id,
            deployment_id=self.deployment_id,
            seq=self.next_seq,
            **body,
        )
        self.next_seq += 1
        if payload is None:
            return operation, b""
        bundle = tensors.encode(payload)
        if len(bundle.data) <= tensors.INLINE_PAYLOAD_BYTES:
            operation.payload.inline.CopyFrom(bundle)
            return operation, b""
        staged = common_pb2.StagedBundle(
            tensors=bundle.tensors, nbytes=len(bundle.data), staging_id=operation.operation_id
        )
        operation.payload.staged.CopyFrom(staged)
        return operation, bundle.data

    def submit(
        self, operation: operations_pb2.Operation, data: bytes = b""
    ) -> operations_pb2.OperationResult:
        """Submit and wait; raise the `PlexError` of a refusal or failure."""
        call = self._router.SubmitOperation.future(operation, timeout=60, metadata=self._metadata)
        if data:
            self.stage(operation, data)
        result: operations_pb2.OperationResult = call.result()
        if result.HasField("error"):
            raise errors.from_wire(result.error)
        return result

    def stage(self, operation: operations_pb2.Operation, data: bytes) -> None:
        """Upload the operation's payload; raise the `PlexError` of a refusal."""
        requests = iter(self._stage_requests(operation, data))
        try:
            self._router.StagePayload(requests, timeout=60, metadata=self._metadata)
        except grpc.RpcError as refusal:
            raise error_from(refusal) from refusal

    @property
    def _router(self) -> service_pb2_grpc.RouterStub:
        return service_pb2_grpc.RouterStub(self.channel)

    @property
    def _metadata(self) -> tuple[tuple[str, str]]:
        return (("authorization", f"Bearer {self.token}"),)

    def _stage_requests(
        self, operation: operations_pb2.Operation, data: bytes
    ) -> list[service_pb2.StageRequest]:
        header = service_pb2.StageHeader(
            operation_id=operation.operation_id,
            job_id=operation.job_id,
            deployment_id=operation.deployment_id,
            tensors=operation.payload.staged.tensors,
            nbytes=operation.payload.staged.nbytes,
        )
        pieces = tensors.chunks([memoryview(data)])
        return [
            service_pb2.StageRequest(header=header),
            *(service_pb2.StageRequest(chunk=chunk) for chunk in pieces),
        ]


__all__ = ["PlexError", "RawClient"]
