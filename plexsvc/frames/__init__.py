"""Order lines to ranks: operations as frames on Unix sockets."""
