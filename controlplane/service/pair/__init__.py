"""Several controllers of one network: a store that they share, and which of them leads (docs/operate.md)."""
