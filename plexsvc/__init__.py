"""Many LLM-RL jobs on the same accelerators, each with the result it would have had alone."""
