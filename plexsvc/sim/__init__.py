"""Simulation: drivers of the scheduler under a virtual clock, with faults and cluster events."""
