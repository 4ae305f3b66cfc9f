"""NetStorm: aggregation trees of several roots, auxiliary paths (docs/wan.md)."""
