"""PARAM's communication benchmark and its replay of traces (facebookresearch/param) over our backend and softswitch.

    python -m tests.outside.param FOLDER [--ranks 4] [--collectives all_reduce,...] [-- PARAM'S OPTIONS]
    python -m tests.outside.param FOLDER --replay TRACE.json[.gz] --ranks 2 [-- PARAM'S OPTIONS]

FOLDER is a copy of PARAM's repository. Of the benchmark (train/comms/pt), PARAM checks what the collectives give
(--c 1). The replay (et_replay/tools/comm_replay.py) takes an execution trace of PyTorch, as Chakra has it, of as many
ranks as it was recorded with; each rank replays the same one. Times are of links of 400 Mbit/s a node (the agents'
pace). Needs root, for network namespaces, and for the replay pydot and intervaltree (tests.outside.recipes --install).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.outside.network import Nodes
from tests.outside.recipes import missing, run

COLLECTIVES = "all_reduce,all_gather_base,all_gather,reduce_scatter_base,broadcast"
OPTIONS = ["--b", "64K", "--e", "1M", "--f", "4", "--n", "5", "--w", "2", "--z", "1", "--c", "1"]


REPLAY_OPTIONS = ["--trace-type", "et", "--use-one-trace", "--blocking", "--num-replays", "1", "--output-ranks", "0"]
NEEDS = ("pydot", "intervaltree")


def bench(folder: Path, collective: str, nodes: Nodes, options: list[str]) -> tuple[str, int]:
    """Return rank 0's output and how many chunks the switch completed meanwhile.

    Raises RuntimeError when a rank fails, or when PARAM finds a wrong result.
    """
    before = nodes.added()
    arguments = [str(folder), "bench", "--backend", "inart", "--device", "cpu", "--collective", collective, *options]
    script = Path(__file__).with_name("param_rank.py")
    return run("PARAM", *arguments, agents=nodes.agents, script=script)[0], nodes.added() - before


def replay(folder: Path, trace: Path, nodes: Nodes, options: list[str]) -> tuple[list[dict[str, Any]], int]:
    """Return what PARAM recorded of each operation that rank 0 replayed, and how many chunks the switch completed.

    Raises RuntimeError when a rank fails.
    """
    before = nodes.added()
    with tempfile.TemporaryDirectory(prefix="inart-param-") as out:
        if trace.suffix == ".gz":  # PARAM reads NAME.gz only when it is given NAME.
            unpacked = Path(out, trace.stem)
            unpacked.write_bytes(gzip.decompress(trace.read_bytes()))
            trace = unpacked
        arguments = [
            "--backend",
            "inart",
            "--device",
            "cpu",
            "--trace-path",
            str(trace.resolve()),
            "--output-path",
            out,
        ]
        script = Path(__file__).with_name("param_rank.py")
        run("PARAM's replay", str(folder), "replay", *arguments, *REPLAY_OPTIONS, *options, agents=nodes.agents,
            script=script)  # fmt: skip
        recorded = json.loads(next(Path(out, "replayed_trace").glob("*0.json")).read_text())
    moving = [one for one in recorded if one.get("in_msg_size")]  # the others make groups, or wait
    return moving, nodes.added() - before


def table(operations: list[dict[str, Any]]) -> str:
    """Return a line for each kind of operation of a replay: how many, how many elements, and their time."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in operations:
        kinds.setdefault(one["comms"], []).append(one)
    lines = []
    for kind, found in kinds.items():
        elements = sum(one.get("in_msg_size") or 0 for one in found)
        seconds = sum(one["global_latency_us"] for one in found) / 1e6
        lines.append(f"{kind}: {len(found)} operations, {elements} elements, {seconds:.3f} s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.param", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=4, help="[4]")
    parser.add_argument("--collectives", default=COLLECTIVES, help=f"[{COLLECTIVES}]")
    parser.add_argument("--replay", type=Path, metavar="TRACE", help="replay this trace instead")
    arguments, options = parser.parse_known_args()
    options = [option for option in options if option != "--"]
    if os.geteuid() != 0:
        print("needs root: network namespaces", file=sys.stderr)
        return 2
    if not (arguments.folder / "train" / "comms" / "pt" / "comms.py").exists():
        print(f"{arguments.folder} is no copy of PARAM: it has no train/comms/pt/comms.py", file=sys.stderr)
        return 2
    if arguments.replay is not None and (why := missing(*NEEDS)):
        print(why, file=sys.stderr)
        return 2
    with Nodes(arguments.ranks) as nodes:
        if arguments.replay is not None:
            operations, through = replay(arguments.folder, arguments.replay, nodes, options)
            print(f"{arguments.replay.name}: {len(operations)} operations, {through} chunks through the switch")
            print(table(operations))
            return 0
        for collective in arguments.collectives.split(","):
            said, through = bench(arguments.folder, collective, nodes, options or OPTIONS)
            print(f"{collective}: {through} chunks through the switch")
            print("\n".join(line for line in said.splitlines() if "COMMS-RES" in line), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
