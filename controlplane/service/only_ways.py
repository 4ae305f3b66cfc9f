"""Which of what is on probation has to be used again at once, because a job has no other way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from controlplane.planner.topology import Topology


def connected(topology: Topology, nodes: Sequence[str], disabled: Collection[str]) -> bool:
    """Whether all these servers reach each other over switches, without what is disabled: switches, servers and links
    ("V1-V2", both directions)."""
    if not nodes:
        return True
    reached, waiting = {nodes[0]}, [nodes[0]]
    while waiting:
        node = waiting.pop()
        for other in topology.neighbours(node):
            off = other in disabled or f"{node}-{other}" in disabled or f"{other}-{node}" in disabled
            if off or other in reached:
                continue
            reached.add(other)
            if topology.kind(other) == "switch":
                waiting.append(other)
    return reached.issuperset(nodes)


def only_ways(
    topology: Topology, jobs: Iterable[tuple[Sequence[str], Collection[str]]], probation: Sequence[str]
) -> list[str]:
    """What has to be used again so that the servers of each job reach each other; nothing where that does not help.

    jobs: of each the servers, and what is disabled for it. probation: what may carry again, the likeliest first. One
    that is enough for a job is preferred to several.
    """
    chosen: list[str] = []
    for nodes, disabled in jobs:
        left = set(disabled).difference(chosen)
        if connected(topology, nodes, left):
            continue
        candidates = [name for name in probation if name in left]
        enough = next((name for name in candidates if connected(topology, nodes, left - {name})), None)
        if enough is not None:
            chosen.append(enough)
        elif connected(topology, nodes, left.difference(candidates)):
            chosen += _needed(topology, nodes, left, candidates)
    return chosen


def _needed(topology: Topology, nodes: Sequence[str], disabled: set[str], candidates: Sequence[str]) -> list[str]:
    """Of candidates that are enough together those without which it is not enough, the likeliest kept first."""
    kept = list(candidates)
    for name in reversed(candidates):
        fewer = [one for one in kept if one != name]
        if connected(topology, nodes, disabled.difference(fewer)):
            kept = fewer
    return kept
