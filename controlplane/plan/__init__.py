"""Plans: weighted aggregation trees. `python -m controlplane.plan` is the planner's command line."""

from controlplane.plan.model import Assignment, Plan, PlanError, Relay, Tree

__all__ = ["Assignment", "Plan", "PlanError", "Relay", "Tree"]
