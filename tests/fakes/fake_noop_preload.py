"""A preload module for ranks of the backend `noop`, which need no framework but torch."""

from __future__ import annotations

from typing import Final

import plexsvc.worker.backends.noop
import plexsvc.worker.main  # noqa: F401

ZYGOTE_ENV: Final = {"OMP_NUM_THREADS": "1"}
