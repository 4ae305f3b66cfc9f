"""Tests of the P4Runtime server, over real gRPC on loopback."""
