"""The scheduler's planning and runtime decisions under a virtual clock, on simulated clusters."""
