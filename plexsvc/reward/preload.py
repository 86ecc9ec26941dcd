"""Imports of the reward zygote before it forks: few, since a node has one host of workers."""

from __future__ import annotations

from typing import Final

import msgspec

ZYGOTE_ENV: Final = {"OMP_NUM_THREADS": "1"}
