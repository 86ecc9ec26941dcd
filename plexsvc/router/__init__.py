"""The gRPC front door: authentication, validation, dispatch by parallel layout. Keeps no state."""
