"""Settings of rollout that cannot be meant."""

from __future__ import annotations

import pytest

from plexsvc.errors import PlexError
from plexsvc.rollout.config import RolloutConfig


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_at_which_nothing_can_be_cut_is_refused(share: float) -> None:
    with pytest.raises(PlexError, match=r"rollout\.cuts_at is"):
        RolloutConfig(cuts_at=share)
