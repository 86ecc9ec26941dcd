"""What planning computes with: ring, footprints, free-node tree, interval sets, bit slices."""
