"""Names of the ways in which hosts reduce without switches that add (host_collectives.py, which brings SciPy along)."""

HOST_WAYS = ("host-ring", "reduce-scatter+all-gather", "host-trees")
