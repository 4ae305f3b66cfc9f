"""The overlay over TCP: agents, their coordinator, membership, multicast."""
