"""The pure core of rollout: events of instances and samples in, orders out."""
