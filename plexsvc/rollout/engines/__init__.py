"""Engine adapters behind one protocol: each foreign engine is known to exactly one module."""
