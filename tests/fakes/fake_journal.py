"""A journal's writer that keeps its rows in memory, and fails or waits when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from plexsvc.store.rows import JournalRow


@dataclass(slots=True)
class FakeJournalWriter:
    """Keeps rows; `batches` says of each batch which kinds it had and whether it was synced."""

    rows: list[JournalRow] = field(default_factory=list)
    batches: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)
    failure: Exception | None = None
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    """Writes wait until it is set."""

    async def append(self, rows: Sequence[JournalRow], *, is_synced: bool = True) -> None:
        """Keep rows."""
        await self.is_open.wait()
        if self.failure is not None:
            raise self.failure
        self.rows.extend(rows)
        self.batches.append((tuple(row.kind for row in rows), is_synced))
