"""Benchmarks: each prints one JSON line."""

import plexsvc  # noqa: F401 - gRPC polls here as in a controller that `plexctl submit` starts
