"""Faults of an emulation and their times, such as "a1 at 10s", "c1-a1 at 5s for 20s", "h3 at 8s"."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from controlplane.planner.topology import Topology
from topologies.emulation import Emulation
from topologies.network import EmulationError

_SYNTAX = re.compile(r"\s*(?P<what>\S+)\s+at\s+(?P<at>\d+(\.\d+)?)\s*s?(\s+for\s+(?P<length>\d+(\.\d+)?)\s*s?)?\s*")


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        what: a switch, a link between switches ("V1-V2") or a server.
        at: seconds after the start.
        length: seconds until it is repaired; None: it never is.
    """

    what: str
    at: float
    length: float | None = None

    def __str__(self) -> str:
        return f"{self.what} at {self.at:g} s" + ("" if self.length is None else f" for {self.length:g} s")


def parse_fault(text: str, topology: Topology, also: Collection[str] = ()) -> Fault:
    """Parse a fault. Raise ValueError if it has another form, or names something that the network lacks.

    `also` has further names that may fail, beside the topology's.
    """
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ValueError(f"a failure is like 'a1 at 10s' or 'c1-a1 at 10s for 5s', got {text!r}")
    what = match["what"]
    length = None if match["length"] is None else float(match["length"])
    if what not in also and what not in topology and link_of(what, topology) is None:
        raise ValueError(
            f"{what!r} cannot fail: the network has no such switch or server, and no link between two switches (V1-V2) "
            "of that name"
        )
    return Fault(what, float(match["at"]), length)


def link_of(name: str, topology: Topology) -> tuple[str, str] | None:
    """Return the ends of the link between two switches that has this name ("V1-V2"), or None."""
    for u, v in topology.links:
        if name == f"{u}-{v}" and topology.kind(u) == topology.kind(v) == "switch":
            return u, v
    return None


class Faults:
    """A scheduler that makes faults happen at their times, from `start` to `close`.

    Args:
        emulation: the network.
        faults: the faults.
        server: called with a name and True (it fails) or False (it is back), for servers and other names that are no
            part of the topology.
        log: gets one line per event.
    """

    def __init__(
        self,
        emulation: Emulation,
        faults: Sequence[Fault],
        server: Callable[[str, bool], None],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._emulation, self._server, self._log = emulation, server, log
        self._closed = threading.Event()
        # Each fault has a thread: a slow one delays no other, and a repair never comes before its failure.
        self._threads = [threading.Thread(target=self._follow, args=(fault,), daemon=True) for fault in faults]
        self._began = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()

    def _follow(self, fault: Fault) -> None:
        self._at(fault.at, fault, True)
        if fault.length is not None:
            self._at(fault.at + fault.length, fault, False)

    def _at(self, seconds: float, fault: Fault, fails: bool) -> None:
        self._closed.wait(max(0.0, self._began + seconds - time.monotonic()))
        self._do(fault, fails)

    def _do(self, fault: Fault, fails: bool) -> None:
        if self._closed.is_set():
            return
        self._log(f"{fault.what} {'fails' if fails else 'is back'}")
        try:
            self._change(fault, fails)
        except EmulationError as error:
            if not self._closed.is_set():
                self._log(f"{fault.what}: {error}")

    def _change(self, fault: Fault, fails: bool) -> None:
        topology = self._emulation.topology
        link = link_of(fault.what, topology)
        if link is not None:
            (self._emulation.cut if fails else self._emulation.mend)(*link)
        elif fault.what not in topology or topology.kind(fault.what) == "server":
            self._server(fault.what, fails)
        elif fails:  # A switch comes back by itself.
            self._emulation.fail(fault.what, *([] if fault.length is None else [fault.length]))
