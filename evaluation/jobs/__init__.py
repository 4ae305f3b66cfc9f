"""Many jobs on one network: completion times when they share it, and the cost of a switch that fails."""
