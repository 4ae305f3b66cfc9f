"""The package that every node with an agent installs: agent configuration, RPC, TLS, and building of the C engines.

It imports nothing of the control plane but p4src: no topology, no solver.
"""
