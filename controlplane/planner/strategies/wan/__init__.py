"""Strategies across data centres: a folder a system.

`algorithm` is pure and knows sites and links; `strategy` turns what it decides into a Plan.
"""
