"""The version of softswitch, in a file of its own, so that a build can read it without importing packages that are not
installed yet.
"""

VERSION = "0.1.0"
