"""Weights as boxes of named tensors: overlap, cover, checksums, dtypes, manifests."""
