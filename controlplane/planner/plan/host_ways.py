"""Names of the rows of `compare` that are no strategies."""

HOST_WAYS = ("host-ring", "reduce-scatter+all-gather", "host-trees")
"""Collectives among hosts without switches that add (host_collectives.py, which imports SciPy; this module does
not).
"""

ON_WORKERS = "inart-on-workers"
"""Row of our planner with a parameter server on every worker's server instead of the job's own ones."""

ON_HOSTS = "inart-on-hosts"
"""Row of our planner with a parameter server on every worker's server, where each worker's host also adds inside of
trees.
"""
