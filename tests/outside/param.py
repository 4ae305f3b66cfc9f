"""PARAM's communication benchmark (facebookresearch/param, train/comms/pt) over our backend, through softswitch.

    python -m tests.outside.param FOLDER [--ranks 4] [--collectives all_reduce,...] [-- PARAM'S OPTIONS]

FOLDER is a copy of PARAM's repository. PARAM checks what the collectives give (--c 1). Its times are of links of
400 Mbit/s a node (the agents' pace). Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.outside.network import Nodes
from tests.outside.recipes import run

COLLECTIVES = "all_reduce,all_gather_base,all_gather,reduce_scatter_base,broadcast"
OPTIONS = ["--b", "64K", "--e", "1M", "--f", "4", "--n", "5", "--w", "2", "--z", "1", "--c", "1"]


def bench(folder: Path, collective: str, nodes: Nodes, options: list[str]) -> tuple[str, int]:
    """Return rank 0's output and how many chunks the switch completed meanwhile.

    Raises RuntimeError when a rank fails, or when PARAM finds a wrong result.
    """
    before = nodes.added()
    arguments = [str(folder), "--backend", "inart", "--device", "cpu", "--collective", collective, *options]
    script = Path(__file__).with_name("param_rank.py")
    return run("PARAM", *arguments, agents=nodes.agents, script=script)[0], nodes.added() - before


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.param", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=4, help="[4]")
    parser.add_argument("--collectives", default=COLLECTIVES, help=f"[{COLLECTIVES}]")
    arguments, options = parser.parse_known_args()
    if os.geteuid() != 0:
        print("needs root: network namespaces", file=sys.stderr)
        return 2
    if not (arguments.folder / "train" / "comms" / "pt" / "comms.py").exists():
        print(f"{arguments.folder} is no copy of PARAM: it has no train/comms/pt/comms.py", file=sys.stderr)
        return 2
    with Nodes(arguments.ranks) as nodes:
        for collective in arguments.collectives.split(","):
            said, through = bench(arguments.folder, collective, nodes, [o for o in options if o != "--"] or OPTIONS)
            print(f"{collective}: {through} chunks through the switch")
            print("\n".join(line for line in said.splitlines() if "COMMS-RES" in line), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
