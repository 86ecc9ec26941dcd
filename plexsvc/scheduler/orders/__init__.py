"""Handlers of the core's orders: calls to nodes, ranks and state managers."""
