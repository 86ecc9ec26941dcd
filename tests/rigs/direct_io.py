"""Whether the directory for temporary files takes direct I/O, as the disk of parked state must."""

from __future__ import annotations

import os
import tempfile

import pytest


def has_direct_io() -> bool:
    try:
        os.close(os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError:
        return False
    return True


needs_direct_io = pytest.mark.skipif(
    not has_direct_io(), reason="temporary files here take no direct I/O: NOT RUN"
)
