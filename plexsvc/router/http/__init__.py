"""HTTP for clients that others wrote: a server with bounds, and tables of routes."""
