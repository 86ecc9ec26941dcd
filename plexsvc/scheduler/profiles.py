"""Measured cycles between the core and the store."""

from __future__ import annotations

from typing import Final

import msgspec

from plexsvc.scheduler.core.planning.profiler import KeptProfile
from plexsvc.store.rows import ProfileRow

_DECODER: Final = msgspec.json.Decoder(KeptProfile)


def to_row(kept: KeptProfile) -> ProfileRow:
    """Return the row of a measured cycle."""
    return ProfileRow(
        tenant=kept.key.tenant,
        model=kept.key.model,
        layout=kept.key.layout,
        name=kept.key.name,
        at_us=kept.at_us,
        body=msgspec.json.encode(kept).decode(),
    )


def from_row(row: ProfileRow) -> KeptProfile:
    """Return the measured cycle of a row."""
    return _DECODER.decode(row.body)
