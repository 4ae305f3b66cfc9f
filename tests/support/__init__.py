"""Helpers that the tests of several packages use."""
