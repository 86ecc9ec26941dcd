"""Decisions of the reward proxy: facts in, orders out; no clock, no I/O."""
