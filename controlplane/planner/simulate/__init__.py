"""Flow-level, event-driven simulation (docs/wan.md). Plans run in controlplane.planner.simulate.plans."""

from controlplane.planner.simulate.engine import Sharing, Simulator
from controlplane.planner.simulate.native import SimulationError
from controlplane.planner.simulate.networks import BigSwitch, LinkNetwork, Overlay, follow, outage

__all__ = [
    "BigSwitch",
    "LinkNetwork",
    "Overlay",
    "Sharing",
    "SimulationError",
    "Simulator",
    "follow",
    "outage",
]
