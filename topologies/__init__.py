"""Emulated networks: Mininet hosts and links around P4 switches (softswitch or bmv2).

`Emulation` builds one from a `Topology` and takes it down again; `python -m topologies` does
the same from the command line.
"""

from topologies.emulation import Emulation, EmulationError

__all__ = ["Emulation", "EmulationError"]
