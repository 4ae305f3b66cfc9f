"""Many jobs on one network: a soak test in the emulation, and the effect of sharing on completion times."""
