"""Strategies: pure functions (topology, job, seed, frozen_split) -> Plan. A new one is one new file and one registry line."""
