"""APSP: placement of the parameter server, and routing to it (docs/wan.md)."""
