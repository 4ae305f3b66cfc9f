"""Gives a running controller another topology: racks, switches, links and servers come and go, rates change.

What jobs use must still be there, at the same ports and addresses. Otherwise nothing is changed, and the error says
which job would lose what and what to do before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.planner.topology import Topology, TopologyError
from controlplane.service.core.parts import relaid
from controlplane.service.core.ways import link_name
from controlplane.service.entry_changes import EntryChange
from controlplane.service.network_state import layout_of
from controlplane.service.running import RunningJob
from controlplane.service.uses import uses
from controlplane.targets.base import SwitchTarget

if TYPE_CHECKING:
    from controlplane.service.network import Network

WAIT_SECONDS = 30.0
"""Seconds for which a reload waits for a job's migration that is under way."""
MOST_SAID = 6

Connect = Callable[[Sequence[str]], Sequence[SwitchTarget]]
"""A function that returns connected targets of the switches with these names, and raises TargetError where it
cannot."""


class ReloadError(Exception):
    """The topology cannot be used; the message says which job would lose what, and what to do. Nothing has been
    changed."""


@dataclass(frozen=True)
class Difference:
    """Differences between two topologies: names of nodes, and of links ("V1-V2")."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True)
class Reloaded:
    """Result of a reload or, in a dry run, of what it would do: `changes` are those of the network's own entries, and
    `entries` counts the changes that were written to switches."""

    difference: Difference
    changes: tuple[EntryChange, ...]
    entries: int = 0


def reload(network: Network, topology: Topology, connect: Connect, *, dry_run: bool = False) -> Reloaded:
    """Make `topology` the network's, with its jobs running; they are replanned for it soon.

    Raise ReloadError, TargetError, or the errors of planning routes; nothing has been changed then.
    """
    with network.replanning.changing, _no_migration_under_way(network.jobs):
        old = network.topology
        found = compare(old, topology)
        _check(network, topology, found)
        base = network.base_rules(topology, filter(layout_of(topology).has, network.state.off))
        changes = network.switches.base_changes(base)
        if dry_run or not found:
            return Reloaded(found, changes)
        arriving = [name for name in topology.devices if name not in old.devices]
        targets = connect(arriving) if arriving else ()
        try:
            entries = network.switches.reload(base, targets, topology.devices)
        except BaseException:
            for target in targets:
                target.close()
            raise
        _take(network, topology)
    network.log.info(f"topology reloaded: {in_words(found)}; {entries} changes on the switches")
    network.changed()
    network.replanning.soon()
    return Reloaded(found, changes, entries)


def compare(old: Topology, new: Topology) -> Difference:
    """Return the differences; a link has the same name whichever end is named first."""
    before, after = _parts(old), _parts(new)
    return Difference(
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        tuple(name for name in after if name in before and before[name] != after[name]),
    )


def in_words(found: Difference) -> str:
    """Return a difference as a person reads it."""
    words = (("added", found.added), ("removed", found.removed), ("changed", found.changed))
    said = [f"{len(names)} {what} ({_some(names)})" for what, names in words if names]
    return ", ".join(said) or "nothing is different"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_SAID]) + (", ..." if len(names) > MOST_SAID else "")


def _parts(topology: Topology) -> dict[str, object]:
    """Return what the file says about each node and link, and the addresses and ports that follow from it."""
    found: dict[str, object] = {}
    for node in topology.nodes:
        server = topology.kind(node) == "server"
        where = (topology.address(node), topology.mac(node)) if server else ()
        found[node] = _said(topology.graph.nodes[node]), where
    for u, v in topology.links:
        ports = {end: topology.port(end, other) for end, other in ((u, v), (v, u)) if topology.kind(end) == "switch"}
        known = found.setdefault(link_name(u, v), {})
        assert isinstance(known, dict), "links are named after both ends"
        known[u, v] = _said(topology.graph.edges[u, v]), ports
    return found


def _said(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return what a file says, without addresses and ports, which follow from the whole topology where the file does
    not name them."""
    return {name: value for name, value in attributes.items() if name not in ("ip", "mac", "ports")}


def _check(network: Network, topology: Topology, found: Difference) -> None:
    """Check that no job would lose anything that it has; raise ReloadError otherwise."""
    moved = _moved(network.topology, topology)
    for job in network.jobs:
        nodes = {*job.migrator.job.workers, *job.migrator.job.parameter_servers}
        lost = [node for node in nodes if node in found.removed]
        if lost:
            raise ReloadError(
                f"job {job.name} would lose {_some(sorted(lost))}: remove the job first (inart job remove {job.name}), "
                "or leave its nodes in the topology"
            )
        if others := sorted(node for node in nodes if node in moved):
            raise ReloadError(f"job {job.name}: {_some(others)} {moved[others[0]]}: remove the job first")
    layout = network.state.parts.layout
    for use in uses(network.jobs, [*found.removed, *moved], layout):
        if use.part in moved:
            raise ReloadError(
                f"{use.part} {moved[use.part]}, and job {use.job} uses it ({use.how}): give it its port and address in "
                f"the file, or `inart drain {use.part} --wait` first"
            )
        raise ReloadError(
            f"{use.part} is not in the new topology, and job {use.job} uses it ({use.how}): `inart drain {use.part} "
            "--wait` first"
        )
    for job in network.jobs:
        try:
            job.migrator.job.check(topology)
            job.plan.check(topology)
        except (TopologyError, ValueError) as error:
            raise ReloadError(f"job {job.name} could not go on: {error}") from None
    if network.kind.limits.front_panel:
        for switch in topology.devices:
            if switch in network.topology.devices and topology.front_panel(switch) != network.topology.front_panel(
                switch
            ):
                raise ReloadError(f"switch {switch} has other front-panel ports: start the controller again for that")


def _moved(old: Topology, new: Topology) -> dict[str, str]:
    """Return what has moved of each node or link that stays: its address, its switch, or a port."""
    found: dict[str, str] = {}
    for node in new.nodes:
        if node not in old:
            continue
        if old.kind(node) != new.kind(node):
            found[node] = f"is a {new.kind(node)} now"
        elif old.kind(node) == "server":
            was, now = (old.address(node), old.mac(node)), (new.address(node), new.mac(node))
            if was != now:
                found[node] = f"has another address ({' '.join(now)} instead of {' '.join(was)})"
    for u, v in new.links:
        if not old.has_link(u, v):
            continue
        for end, other in ((u, v), (v, u)):
            if new.kind(end) == old.kind(end) == "switch" and new.port(end, other) != old.port(end, other):
                name = f"is at port {new.port(end, other)} of {end} instead of {old.port(end, other)}"
                found[link_name(u, v)] = name
    return found


def _take(network: Network, topology: Topology) -> None:
    """Make the topology the network's from now on; nothing can fail here."""
    state = network.state
    with state.lock:
        declared = [job.name for job in network.jobs if state.bases.get(job, network.topology) is not network.topology]
        network.failover.take(relaid, layout_of(topology))
        network.topology = state.topology = topology
        state.bases.clear()
        for job in network.jobs:
            job.migrator.relaid(topology)
    if declared:
        network.log.info(
            f"what `replan --set` and --topology declared before does not hold any more: job {', '.join(declared)}"
        )


@contextmanager
def _no_migration_under_way(jobs: Iterable[RunningJob]) -> Iterator[None]:
    """Let no migration of any of these jobs begin in the `with` block. Raise ReloadError where one has been under
    way for too long."""
    with ExitStack() as stack:
        for job in jobs:
            if not stack.enter_context(job.migrator.still(WAIT_SECONDS)):
                raise ReloadError(f"job {job.name} is migrating: give the order again when that is over")
        yield
