"""A state manager that announces itself and waits: for drills of the node agent."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time

from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Message
from plexsvc.tether import die_with_parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--vault-fd", type=int, required=True)
    vault_fd = parser.parse_args().vault_fd
    die_with_parent(os.getppid())
    line = json.dumps({"address": f"fake:{os.getpid()}", "data_socket": "/nowhere"})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    with socket.socket(fileno=vault_fd) as vault:
        while True:
            dataplane.send(vault, Message(header={"op": "beat"}))
            time.sleep(0.2)  # noqa: TID251 - it has nothing else to do


if __name__ == "__main__":
    main()
