"""Simulated agents beside serving engines that lend, in the settings of ROSE."""
