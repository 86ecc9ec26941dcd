"""Records that clients are shown: jobs, deployments, results, sessions."""
