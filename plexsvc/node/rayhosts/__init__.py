"""The program that speaks with Ray, run by a Python that has Ray and need not have plexsvc."""
