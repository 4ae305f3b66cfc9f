"""The P4 programs, and what the rest of the system reads of them: protocol constants and compiled artifacts.

:mod:`p4src.protocol` is the one reader of ``protocol.json``; :mod:`p4src.generate` turns it into P4 and C headers;
:mod:`p4src.build` compiles a program; :mod:`p4src.artifacts` finds what was compiled and describes it.
"""
