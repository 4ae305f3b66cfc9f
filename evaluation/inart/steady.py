"""Plans drawn networks twice, on the machine as it is and beside busy processes, and compares the plans: no plan may
depend on how busy the machine is.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from controlplane.planner.adding_hosts import workers_add
from controlplane.planner.plan.planning import ERRORS
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.prove import closer_bound
from evaluation.inart import kinds

BUSY = 2  # processes that compute beside the planner


def digest(seed: int) -> str:
    """Return a digest of the plans, the bounds and the refusals of a network of `kinds`, for its own parameter servers
    and for hosts that all add.
    """
    instance = kinds.draw(seed)
    found: list[object] = []
    for topology, job in ((instance.topology, instance.job), workers_add(instance.topology, instance.job)):
        try:
            plan = get_strategy("inart")(topology, job)
        except ERRORS as error:
            found.append(str(error))
            continue
        bound = closer_bound(plan, topology)
        found += [plan.to_json(), None if bound is None else bound.mbps]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


@contextmanager
def busy(count: int = BUSY) -> Iterator[None]:
    """Run so many processes that compute without a pause inside the block."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def compared(seeds: range) -> Iterator[tuple[int, str, str]]:
    """Yield each seed, the digest on the machine as it is and the one beside busy processes. They are planned in two
    passes, as a plan is not searched for twice in a row.
    """
    idle = [digest(seed) for seed in seeds]
    with busy():
        for seed, first in zip(seeds, idle, strict=True):
            yield seed, first, digest(seed)
