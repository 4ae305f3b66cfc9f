"""A day in the life of a network: jobs come and go, operators work, things fail (python -m evaluation.operate)."""
