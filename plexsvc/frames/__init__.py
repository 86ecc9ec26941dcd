"""Operations as frames on TCP connections, where a gRPC call would cost too much."""
