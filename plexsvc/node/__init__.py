"""The node agent: starts a node's processes, reaps them, holds the node's lease."""
