"""Simulated job on training devices and spot instances, in the settings of RLBoost."""
