"""Reads the bmv2 JSON that p4c-bm2-ss emits into a checked, typed form: ``model`` is the form, ``reader`` reads.

Programs get through only if the rest of softswitch implements them. A construct that it does not implement raises
:class:`UnsupportedConstruct`, which names the construct and the P4 source line; nothing is skipped silently. JSON that
is not well-formed, or that refers to things that do not exist, raises :class:`BadProgram`. The format is described by
the behavioral-model project (docs/JSON_format.md, version 2).
"""
