"""Imports of the managers' zygote before it forks: few, since a node has one or two managers."""

from __future__ import annotations

from typing import Final

import msgspec
import xxhash

from plexclient.wire.v1 import rollout_pb2, worker_pb2

ZYGOTE_ENV: Final = {"OMP_NUM_THREADS": "1"}
