"""Training across data centres: agents on hosts add tensors along trees of TCP connections (docs/overlay.md).

agent = overlay.Agent(("10.0.0.1", 9700), "h3", listen=("10.0.0.3", 0))
agent.synchronise(values)     # replaced by the mean; the coordinator's policy decides which agent adds which values
"""

from overlay.core.errors import Late, OverlayError, PeerLost
from overlay.core.tcp import Connections
from overlay.net.agent import Agent, Done
from overlay.net.coordinator import Coordinator

__all__ = ["Agent", "Connections", "Coordinator", "Done", "Late", "OverlayError", "PeerLost"]
