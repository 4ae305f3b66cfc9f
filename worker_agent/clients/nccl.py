"""Writes InArt's plugin for NCCL, whose all-reduces then go through the network (CollNet), to a folder.

inart nccl FOLDER                                            # on each node, or once for all of them
inart agent --controller HOST:PORT --socket /run/inart/agent.sock                                   # on each node
LD_LIBRARY_PATH=FOLDER NCCL_NET_PLUGIN=inart NCCL_COLLNET_ENABLE=1 INART_AGENT=unix:/run/inart/agent.sock torchrun ...

It has not been tried with GPUs; docs/training.md says what has been tried.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.common import command_line
from controlplane.common.native_build import BuildError
from controlplane.common.whole_file import replace_file
from worker_agent.clients.build import nccl_library

NAME = "libnccl-net-inart.so"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line.make("nccl", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"gets {NAME}")
    arguments = parser.parse_args(argv)
    try:
        plugin = arguments.folder / NAME
        replace_file(plugin, nccl_library().read_bytes(), 0o755, synced=False)
        print(plugin)
    except (BuildError, OSError) as error:
        print(f"inart nccl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
