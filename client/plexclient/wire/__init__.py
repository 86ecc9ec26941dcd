"""The wire: generated stubs and the codec of tensor bundles."""
