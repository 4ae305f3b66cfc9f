"""Strategies across data centres, one folder for each system.

In a folder, `algorithm` is pure and knows sites and links, and `strategy` makes a Plan of its decisions.
"""
