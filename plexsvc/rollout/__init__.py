"""Rollout: engine instances, and the managers that own token records."""
