"""The version: in a file of its own, so that a build reads it without importing what is not installed yet."""

VERSION = "0.1.0"
