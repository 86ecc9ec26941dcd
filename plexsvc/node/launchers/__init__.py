"""Launchers of node agents."""
