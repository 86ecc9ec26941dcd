"""Placement: where deployments go."""
