"""`plexctl demo`: two real RL jobs on one device, from a random model to figures and a verdict."""
