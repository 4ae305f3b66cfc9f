"""The command `inart run`: a training command with a job in the network for as long as it runs (docs/training.md)."""
