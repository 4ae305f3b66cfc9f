"""One of our workers: an engine in its host's network namespace that does what each line of its input says (ranks.py).

    python -m evaluation.collectives.own CONFIGURATION

CONFIGURATION is a worker's AgentConfig as JSON.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from evaluation.collectives.cases import Case, data
from evaluation.collectives.ranks import in_order, serve
from worker_agent.engine import Engine


def main(configuration: str) -> None:
    """Do what each line of the input asks for, until it ends."""
    config = AgentConfig.from_json(configuration)
    with Engine(config, "data0") as engine:

        def prepare(task: dict[str, Any]) -> tuple[Callable[[], float], Callable[[], int]]:
            seed, cases = task["seed"], [Case(**case) for case in task["cases"]]
            steps = [
                (data(case, config.index, seed), case.operation(seed), None if case.is_raw else case.dtype)
                for case in cases
            ]

            begin = [partial(engine.allreduce_async, tensor, op, dtype=dtype) for tensor, op, dtype in steps]
            return in_order(begin, task["beside"], task["warm"]), lambda: zlib.crc32(
                b"".join(tensor.tobytes() for tensor, _, _ in steps)
            )

        serve(prepare)


if __name__ == "__main__":
    main(sys.argv[1])
