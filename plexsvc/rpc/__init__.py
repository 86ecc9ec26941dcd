"""gRPC between processes: channels, errors on the wire, event loops."""
