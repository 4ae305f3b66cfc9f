"""Events of the network: links, switches and interfaces fail, lose and corrupt packets."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from evaluation.chaos.controller import eventually
from evaluation.chaos.events import Act, Happening, Steps
from p4src.protocol import HEADER_OFFSET, PROTOCOL
from topologies.command import repeated
from topologies.emulation import Emulation
from topologies.faults import link_of

BURST_LOSS = 0.3
FLIPPED = 0.01
FLIP_SLOTS = 255
FLIPS_AT_ONCE = 400
FLIP_EVERY = 0.1
VALUE_REGISTERS = "InartIngress.values."
BACK_SECONDS = 10.0


class NetworkEvents:
    """Events that affect a network. `repaired` has an operator enable switches again once they no longer corrupt."""

    def __init__(self, emulation: Emulation, repaired: Callable[[Happening], None] = lambda one: None) -> None:
        self._emulation, self._repaired = emulation, repaired

    def acts(self) -> dict[str, Act]:
        """Return the function that makes an event happen, by kind."""
        return {
            "link": self._link, "switch": self._switch, "edge": self._switch, "reboot": self._reboot,
            "burst": lambda one: self._lossy(one, BURST_LOSS), "blackout": lambda one: self._lossy(one, 1.0),
            "flip": self._flip, "memory": self._memory, "interface": self._interface,
        }  # fmt: skip

    def _lost(self, *switches: str) -> int:
        drops = self._emulation.drops()
        return sum(drops[name].get("injected_loss", 0) for name in switches or drops)

    def _link(self, one: Happening) -> Steps:
        ends = link_of(one.event.target, self._emulation.topology)
        assert ends is not None, "it was drawn from the links between switches"
        u, v = ends
        before = self._lost(u, v)
        self._emulation.cut(u, v)
        one.happened = True
        try:
            yield
        finally:
            self._emulation.mend(u, v)
        one.evidence["frames lost"] = self._lost(u, v) - before

    def _switch(self, one: Happening) -> Steps:
        switch = one.event.target
        self._emulation.fail(switch, max(0.1, one.event.seconds))
        one.happened = eventually(lambda: not self._emulation.switches.is_up(switch))
        yield
        one.evidence["is back"] = eventually(lambda: self._emulation.switches.is_up(switch), BACK_SECONDS)

    def _reboot(self, one: Happening) -> Steps:
        self._emulation.reboot(one.event.target)
        one.happened = True
        one.evidence["forgot everything"] = True
        yield

    def _lossy(self, one: Happening, loss: float) -> Steps:
        before = self._lost()
        self._shape_all(loss=loss)
        try:
            yield
        finally:
            self._shape_all(loss=0.0)
        one.evidence["frames lost"] = self._lost() - before
        one.happened = one.evidence["frames lost"] > 0

    def _shape_all(self, **faults: float) -> None:
        topology = self._emulation.topology
        for u, v in topology.links:
            if u in topology.switches:
                self._emulation.shape(u, v, **faults)

    def _flip(self, one: Happening) -> Steps:
        switch = one.event.target
        before = self._emulation.switches.corrupted()[switch]
        where = random.Random(one.event.seed).choice((HEADER_OFFSET, PROTOCOL.values_offset))
        faults = {"corrupt": FLIPPED, "corrupt_udp": 1.0, "corrupt_hidden": 1.0, "corrupt_from": float(where)}
        neighbours = self._emulation.topology.neighbours(switch)
        try:
            for neighbour in neighbours:
                self._emulation.shape(switch, neighbour, **faults)
            yield
        finally:
            for neighbour in neighbours:
                self._emulation.shape(switch, neighbour, corrupt=0.0)
        one.evidence["frames corrupted"] = self._emulation.switches.corrupted()[switch] - before
        self._repaired(one)
        one.evidence["in"] = "values" if where == PROTOCOL.values_offset else "header and values"
        one.happened = one.evidence["frames corrupted"] > 0

    def _memory(self, one: Happening) -> Steps:
        one.evidence["bits flipped"] = 0

        def flip() -> None:
            with suppress(Exception):  # it has just rebooted
                flipped = self._emulation.switches.flip(one.event.target, VALUE_REGISTERS, FLIPS_AT_ONCE, FLIP_SLOTS)
                one.evidence["bits flipped"] += flipped

        with repeated(flip, FLIP_EVERY):
            yield
        one.happened = one.evidence["bits flipped"] > 0
        self._repaired(one)

    def _interface_index(self, host: str) -> int:
        """Return the kernel's index of a host's data interface, which changes when it is made again."""
        shown = self._emulation.run(host, ["ip", "-o", "link", "show", "dev", self._emulation.interface(host)])
        return int(shown.stdout.split(":")[0])

    def _interface(self, one: Happening) -> Steps:
        node = one.event.target
        before = self._interface_index(node)
        self._emulation.remake_interface(node)
        after = self._interface_index(node)
        one.evidence["interface index"] = f"{before} -> {after}"
        one.happened = before != after
        yield
