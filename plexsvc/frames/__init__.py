"""Order lines to ranks: operations as frames on TCP connections."""
