"""`make bmv2-fattree`: trains a model through P4 switches in an emulated fat-tree, and over gloo on the same
network.
"""
