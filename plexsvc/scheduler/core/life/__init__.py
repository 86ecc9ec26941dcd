"""Life cycles of jobs, deployments and worker-process groups."""
