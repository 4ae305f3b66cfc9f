"""The commands `inart plan`, `inart plan pareto` and `inart plan place`."""
