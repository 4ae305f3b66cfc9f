"""Topology and job to plan, rates and rules: pure functions, without gRPC, threads or sockets."""
