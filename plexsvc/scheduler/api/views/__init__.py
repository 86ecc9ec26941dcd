"""What callers see: deployments, jobs, nodes, the plan, reports, explanations, as wire messages."""
