"""The scheduler's pure core: events in, actions out; no clock, socket, log, thread or dice."""
