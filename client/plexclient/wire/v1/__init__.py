"""Generated from proto/plexsvc/v1 by `make proto`; do not edit."""
