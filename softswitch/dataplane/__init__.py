"""Compiled programs on ports: tables, externs, links, fabrics of several switches."""
