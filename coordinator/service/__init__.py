"""The coordinator's gRPC server, alone or inside a driver."""
