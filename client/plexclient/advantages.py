"""Advantages from rewards, computed on the client."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plexclient.errors import bad_batch


def grpo_advantages(
    rewards: npt.ArrayLike,
    *,
    group: int,
    normalize: bool = True,
    eps: float = 1e-6,
) -> npt.NDArray[np.float32]:
    """Return each reward minus its group's mean, over the group's deviation if `normalize`.

    The deviation is the population's (`ddof=0`) plus `eps`; libraries that take `ddof=1` get
    advantages smaller by `sqrt(1 - 1 / group)`. Rewards are prompt-major, as `generate(n=group)`
    returns samples. A group of equal rewards gives zeros: it teaches nothing.

    >>> grpo_advantages([0, 1, 5, 5], group=2, normalize=False).tolist()
    [-0.5, 0.5, 0.0, 0.0]

    Raises:
        PlexError: `bad_batch` when rewards do not divide into groups or are not finite.
    """
    values = np.asarray(rewards, dtype=np.float64).reshape(-1)
    if group < 1 or values.size == 0 or values.size % group:
        raise bad_batch(
            f"{values.size} rewards do not divide into groups of {group}; pass the n of generate"
        )
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise bad_batch(f"reward {where} is {values[where]}; rewards must be finite")
    groups = values.reshape(-1, group)
    centred = groups - groups.mean(axis=1, keepdims=True)
    if normalize:
        centred = centred / (groups.std(axis=1, keepdims=True) + eps)
    advantages: npt.NDArray[np.float32] = centred.reshape(-1).astype(np.float32)
    return advantages
