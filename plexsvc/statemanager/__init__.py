"""One daemon a node, the only authority on where state is: device, host memory, checkpoints."""
