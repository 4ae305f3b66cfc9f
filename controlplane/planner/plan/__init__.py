"""Plans, which are sets of weighted aggregation trees. `inart plan` is the planner's command line."""

from controlplane.planner.plan.assignments import Assignment, Assignments, Way
from controlplane.planner.plan.model import Multicast, Plan, PlanError, Relay, Tree

__all__ = ["Assignment", "Assignments", "Multicast", "Plan", "PlanError", "Relay", "Tree", "Way"]
