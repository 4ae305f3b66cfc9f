"""Tests of the whole repository; one folder per area."""
