"""Simulation of rollouts: the cores of `plexsvc.rollout.core` over engines that are profiles."""
