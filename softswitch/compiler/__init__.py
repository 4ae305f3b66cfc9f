"""Turns a P4 program (:class:`softswitch.bmv2json.model.P4Program`) into native code."""
