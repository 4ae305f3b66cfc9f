"""The decisions of the four WAN papers, and ours: pure functions that know no simulator (docs/wan.md)."""
