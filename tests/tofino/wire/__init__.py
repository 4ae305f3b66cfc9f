"""A client of the BfRuntime gRPC interface with the calls of the SDE's `bfrt_grpc.client` that we use, for tests.

Deployments use the SDE's own client (`controlplane/targets/bri/sde.py`). Where there is no SDE, this one stands in, so
that the target's code and the bytes on the wire are the same.
"""
