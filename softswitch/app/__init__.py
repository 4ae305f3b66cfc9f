"""The switch as a program: its options, configuration, control socket and ports of several switches in one process."""
