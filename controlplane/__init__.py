"""Control plane: topology and job in, plan, switch rules and agent configuration out. See docs/architecture.md."""
