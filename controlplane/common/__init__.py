"""What an agent's node needs: agent configuration, RPC, TLS, building of the C engines. No topology, no solver."""
