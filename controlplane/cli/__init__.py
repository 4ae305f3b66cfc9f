"""The command lines of the control plane: each module parses its options, calls the other packages, and prints."""
