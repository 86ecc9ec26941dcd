"""Data structures of planning: ring, footprints, free-node tree, interval sets."""
