"""`make bmv2-fattree`: train a model through P4 switches in an emulated fat-tree, beside gloo on the same network."""
