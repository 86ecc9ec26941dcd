"""Encoding of measured cycles for the store."""

from __future__ import annotations

from typing import Final

import msgspec

from plexsvc.log import Log
from plexsvc.scheduler.core.planning.profiler import KeptProfile
from plexsvc.store.rows import ProfileRow

log = Log(__name__)

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


def from_row(row: ProfileRow) -> KeptProfile | None:
    """Return the measured cycle of a row; None, and a word in the log, if it is none.

    A cycle can be measured again: a row that cannot be read must not keep the service down.
    """
    kept: KeptProfile | None = None
    try:
        kept = _DECODER.decode(row.body)
        why = _why_not(kept)
    except (msgspec.DecodeError, UnicodeError) as error:
        why = str(error)
    if why:
        log.warning("stored cycle ignored", tenant=row.tenant, name=row.name, why=why)
        return None
    return kept


def _why_not(kept: KeptProfile) -> str:
    """Return why a cycle is none that was measured; nothing if it may be."""
    profile = kept.profile
    if profile.period_us <= 0 or not profile.segments:
        return f"period {profile.period_us} us, {len(profile.segments)} segments"
    if min(profile.switch_us, profile.jitter_ppm, kept.device_bytes, kept.run_us) < 0:
        return "a negative switch, jitter, state or run"
    end_us = 0
    for segment in profile.segments:
        if segment.offset_us < end_us or segment.duration_us < 0:
            return f"segment {segment.phase} at {segment.offset_us} us is not after the one before"
        end_us = segment.end_us
    return "" if end_us <= profile.period_us else f"segments end at {end_us} us"
