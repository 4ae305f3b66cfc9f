"""The gRPC service between agents and controller: messages (inart.proto), stubs, client, TLS."""
