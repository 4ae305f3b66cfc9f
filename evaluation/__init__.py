"""Measurements: figures, tables and benchmarks. Each subpackage is a command, `python -m evaluation.NAME`."""
