"""Program that says nothing when it is started first, and serves when it is started again.

`python -m tests.rigs.hangs_at_first --config FILE` tells by a file beside FILE which time it is.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path


def main() -> None:
    started = Path(sys.argv[2]).with_suffix(".started")
    if started.exists():
        sys.stdout.write(json.dumps({"address": "unix:served"}) + "\n")
        sys.stdout.flush()
    started.touch()
    signal.pause()


if __name__ == "__main__":
    main()
