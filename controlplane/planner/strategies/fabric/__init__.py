"""Strategies for a fabric, one file each: our own, InArt as the paper has it, and the paper's baselines."""
