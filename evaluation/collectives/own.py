"""One worker of ours: an engine in its host's network namespace that does what each line of its input says (ranks.py).

    python -m evaluation.collectives.own CONFIGURATION

CONFIGURATION is a worker's AgentConfig as JSON.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from evaluation.collectives.cases import Case, data
from evaluation.collectives.ranks import serve
from worker_agent.engine import Engine


def main(configuration: str) -> None:
    """Until its input ends."""
    config = AgentConfig.from_json(configuration)
    with Engine(config, "data0") as engine:

        def prepare(task: dict[str, Any]) -> tuple[Callable[[], object], Callable[[], int]]:
            seed, in_a_row = task.pop("seed"), task.pop("in_a_row")
            case = Case(**task)
            tensors = [data(case, config.index, seed) for _ in range(in_a_row)]
            op = case.operation(seed)
            dtype = None if case.is_raw else case.dtype

            def run() -> None:
                for tensor in tensors:
                    engine.allreduce(tensor, op, dtype=dtype)

            return run, lambda: zlib.crc32(b"".join(tensor.tobytes() for tensor in tensors))

        serve(prepare)


if __name__ == "__main__":
    main(sys.argv[1])
