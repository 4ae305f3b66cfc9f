"""The switch as a program: its options, configuration, control socket, and several switches in one process."""
