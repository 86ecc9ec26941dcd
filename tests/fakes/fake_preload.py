"""A preload module for zygote drills: light, with an environment of its own."""

from __future__ import annotations

from typing import Final

ZYGOTE_ENV: Final = {"FAKE_ZYGOTE_ENV": "set before the import"}
