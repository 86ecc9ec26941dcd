"""Operation queues: admission and the order within a deployment."""
