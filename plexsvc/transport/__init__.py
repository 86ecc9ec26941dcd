"""How bytes move between processes: gRPC channels, passed descriptors, fixed mappings."""
