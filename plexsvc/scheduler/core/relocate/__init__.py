"""Relocation: repacking, drains and moves of deployments to other devices."""
