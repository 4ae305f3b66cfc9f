"""What softswitch's tests, and others that start P4Runtime switches, have in common."""
