"""Tests of the control plane for Tofino, without a switch and with or without an SDE."""
