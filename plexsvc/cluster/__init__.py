"""A whole cluster on one machine: composition, configuration, and where its files lie."""
