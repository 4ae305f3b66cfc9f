"""The commands `inart plan`, `inart compare`, `inart pareto` and `inart plan place`."""
