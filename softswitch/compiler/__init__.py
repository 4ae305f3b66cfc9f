"""Turns a P4 program (:class:`softswitch.bmv2json.P4Program`) into native code."""
