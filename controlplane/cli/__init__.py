"""The command lines, thin: each reads options, calls what it is for, and prints."""
