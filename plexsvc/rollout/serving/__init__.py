"""A serving engine that lends what it does not need to RL jobs."""
