"""The presets of the demo."""

from __future__ import annotations

import pytest

from plexsvc.demo.presets import PRESETS, find_preset
from plexsvc.errors import PlexError


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlexError, match="arithmetic, code, frozen, spot, waits"):
        find_preset("nope")


def test_the_frozen_preset_learns_at_rate_zero_and_the_others_do_not() -> None:
    assert [name for name, preset in PRESETS.items() if preset.lr == 0] == ["frozen"]
