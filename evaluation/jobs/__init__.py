"""Many jobs on one network: a soak in the emulation, and what sharing does to completion times."""
