"""Tests of softswitch."""
