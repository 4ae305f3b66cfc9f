"""The P4 programs, and the Python that other packages use for them: protocol constants and compiled artifacts.

Only :mod:`p4src.protocol` reads ``protocol.json``; :mod:`p4src.generate` turns it into P4 and C headers;
:mod:`p4src.build` compiles a program; :mod:`p4src.artifacts` finds and describes compiled programs.
"""
