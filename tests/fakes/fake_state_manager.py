"""A state manager that announces itself and waits: for drills of the node agent."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from plexsvc.node.tether import die_with_parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--vault-fd", type=int, required=True)
    parser.parse_args()
    die_with_parent(os.getppid())
    line = json.dumps({"address": f"fake:{os.getpid()}", "data_socket": "/nowhere"})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
