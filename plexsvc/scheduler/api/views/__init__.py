"""Views: deployments, jobs, nodes, the plan, reports and explanations as wire messages."""
