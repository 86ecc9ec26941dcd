"""Work that is under way for operations: what can be cancelled, and what takes turns.

The records say what an operation is; what works for it lives here, as long as it works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, OperationId


class Underway:
    """Tasks by operation, and turns by deployment; of one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[OperationId, asyncio.Task[object]] = {}
        self._cancelled: set[OperationId] = set()
        self._turns: WeakValueDictionary[DeploymentId, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def cancellable(self, operation_id: OperationId, *, kind: str) -> Iterator[None]:
        """Let `cancel` end what the current task does in the block.

        Raises:
            PlexError: `cancelled`, once all of it has ended.
        """
        task = asyncio.current_task()
        assert task is not None, "work is done by a task"
        self._tasks[operation_id] = task
        try:
            yield
        except asyncio.CancelledError:
            if operation_id not in self._cancelled:
                raise
            task.uncancel()
            text = f"{kind} cancelled with its job or deployment; nothing of it is visible"
            raise PlexError(ErrorCode.CANCELLED, text) from None
        finally:
            del self._tasks[operation_id]
            self._cancelled.discard(operation_id)

    def cancel(self, operation_id: OperationId) -> None:
        """End what is done for an operation; nothing happens if nothing is."""
        if operation_id in self._tasks:
            self._cancelled.add(operation_id)
            self._tasks[operation_id].cancel()

    def turn(self, deployment_id: DeploymentId) -> asyncio.Lock:
        """Return the lock under which a deployment's staged payloads are passed on."""
        return self._turns.setdefault(deployment_id, asyncio.Lock())
