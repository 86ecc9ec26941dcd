"""Rollout: engine instances, and the per-job manager that owns the token record."""
