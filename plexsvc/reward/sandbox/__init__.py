"""Sandboxes: where what a model wrote runs."""
