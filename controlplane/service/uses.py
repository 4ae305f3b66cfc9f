"""Says which jobs use a switch, a link or a parameter server, how, and why one cannot go anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.plan import Tree
from controlplane.service.core.ways import Layout
from controlplane.service.running import RunningJob

MOST_TREES = 8
"""Most numbers of trees that a line names."""


def uses(jobs: Iterable[RunningJob], parts: Sequence[str], layout: Layout) -> Iterator[pb.Use]:
    """Yield the uses of these switches, links ("V1-V2") and parameter servers, in the plans that run or still drain."""
    for job in jobs:
        versions = job.migrator.versions
        for part in parts:
            trees = sorted({n for one in versions for n, tree in enumerate(one.plan.trees) if _touches(tree, part)})
            if trees:
                more = " and more" if len(trees) > MOST_TREES else ""
                which = f"tree{'s' if len(trees) > 1 else ''} {', '.join(map(str, trees[:MOST_TREES]))}{more}"
                how = f"{which} of version {' and '.join(str(one.plan.version) for one in versions)} of its plan"
                yield pb.Use(part=part, job=job.name, how=how, fixed=_fixed(job, part, layout))


def _touches(tree: Tree, part: str) -> bool:
    ways = [*(flow.route for flow in tree.flows), *tree.return_edges]
    links = {name for way in ways for u, v in pairwise(way) for name in _names(u, v)}
    return part in {tree.root, *tree.points, *(node for way in ways for node in way)} or part in links


def _names(u: str, v: str) -> tuple[str, str]:
    """Return both names of a link."""
    return f"{u}-{v}", f"{v}-{u}"


def _fixed(job: RunningJob, part: str, layout: Layout) -> str:
    """Return why the job has no alternative to this part; "" where it may have one."""
    hanging = [node for node in job.servers if part in layout.only_switch(node)]
    if hanging:
        return f"{', '.join(hanging)} {'hang' if len(hanging) > 1 else 'hangs'} on no other switch"
    cut = [node for node in job.servers for switch in layout.only_switch(node) if part in _names(node, switch)]
    if cut:
        return f"it is the only link of {', '.join(cut)}"
    if job.plan.job.parameter_servers == (part,):
        return "it is the job's only parameter server"
    return ""
