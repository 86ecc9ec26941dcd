"""The `plexctl` command line; heavy imports stay inside its commands."""
