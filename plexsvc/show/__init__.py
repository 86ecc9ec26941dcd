"""Tables and pictures of what the service says, for terminals."""
