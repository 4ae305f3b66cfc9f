"""Runs P4 programs with STF files (packets in, packets expected) on softswitch or on bmv2: see ``--help``."""
