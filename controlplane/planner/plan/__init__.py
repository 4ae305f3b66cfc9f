"""Plans: weighted aggregation trees. `python -m controlplane.plan` is the planner's command line."""

from controlplane.planner.plan.model import Assignment, Multicast, Plan, PlanError, Relay, Tree

__all__ = ["Assignment", "Multicast", "Plan", "PlanError", "Relay", "Tree"]
