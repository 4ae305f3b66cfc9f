"""Fuzzers of softswitch that run longer than tests: ``python -m tests.fuzz.differential`` and others (see
``--help``).
"""
