"""The strategy `wan`, our own: the best packing of aggregation trees, with a proven bound (docs/wan.md)."""
