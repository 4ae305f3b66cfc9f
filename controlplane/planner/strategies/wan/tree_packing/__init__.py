"""`wan`, ours: the best packing of aggregation trees, with a proven bound (docs/wan.md)."""
