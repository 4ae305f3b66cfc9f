"""The command `inart run`, which runs a training command with a job in the network (docs/training.md)."""
