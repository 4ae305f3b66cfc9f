"""SelMcast: selective multicast (docs/wan.md)."""
