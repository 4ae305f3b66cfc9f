"""Flow-level, event-driven simulation (docs/wan.md). Plans run in controlplane.simulate.plans."""

from controlplane.simulate.engine import Sharing, SimulationError, Simulator
from controlplane.simulate.networks import BigSwitch, LinkNetwork, Overlay, follow, outage

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
