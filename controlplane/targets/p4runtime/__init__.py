"""Switches over P4Runtime: bmv2's simple_switch_grpc, softswitch and others."""
