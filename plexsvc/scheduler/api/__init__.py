"""The Scheduler service: requests in, views out."""
