"""Emulated networks: Mininet hosts and links around P4 switches (softswitch or bmv2).

`Emulation` builds a network from a `Topology` and removes it again; `inart emulate` does the same from the
command line.
"""

from topologies.emulation import Emulation
from topologies.network import EmulationError

__all__ = ["Emulation", "EmulationError"]
