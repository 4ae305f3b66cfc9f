"""Training across a WAN: agents on hosts, TCP between neighbours of a tree, sums at sites (docs/overlay.md).

agent = overlay.Agent(("10.0.0.1", 9700), "h3", listen=("10.0.0.3", 0))
agent.synchronise(values)     # in place; who sums with whom, and where, is the coordinator's policy
"""

from overlay.core.errors import Late, OverlayError, PeerLost
from overlay.net.agent import Agent, Done
from overlay.net.coordinator import Coordinator

__all__ = ["Agent", "Coordinator", "Done", "Late", "OverlayError", "PeerLost"]
