"""Names of rows of `compare` beside the strategies."""

HOST_WAYS = ("host-ring", "reduce-scatter+all-gather", "host-trees")
"""Ways in which hosts reduce without switches that add (host_collectives.py, which brings SciPy along)."""

ON_WORKERS = "inart-on-workers"
"""Our planner's row with a parameter server on every worker's server, in the place of the job's own."""

ON_HOSTS = "inart-on-hosts"
"""The same where each worker's host also adds inside of trees."""
