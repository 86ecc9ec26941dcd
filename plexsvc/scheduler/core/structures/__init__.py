"""Data structures of planning: the ring of slots, and the footprints of jobs on it."""
