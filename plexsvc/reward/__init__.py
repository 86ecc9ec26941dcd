"""Reward service: programs that score samples, run by a pool of workers behind one proxy."""
