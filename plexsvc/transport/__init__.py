"""How bytes move between processes: gRPC channels, descriptors over Unix sockets, fixed mappings."""
