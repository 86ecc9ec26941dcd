"""Many LLM-RL jobs on the same accelerators, each with the result it would have had alone."""

import os

# gRPC's own pollers, not its event engine's threads: half the wake-ups for a message, a quarter
# less processor time (docs/benchmarks-latency.md). gRPC looks once, when it is first imported.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")  # noqa: TID251 - there is no other way to tell it
