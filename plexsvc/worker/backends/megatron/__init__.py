"""Megatron-core 0.16 as a training backend."""
