"""What planning computes with: the ring, footprints, the free-node tree, interval sets, bit slices."""
