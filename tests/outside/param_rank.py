"""A rank of PARAM's benchmark or replay, with our backend among those that it knows: FOLDER bench|replay [options]."""

from __future__ import annotations

import importlib
import sys
import types

# For each tool: the module to start, and the module with the names of backends that it takes.
TOOLS = {
    "bench": ("param_bench.train.comms.pt.comms", "param_bench.train.comms.pt.pytorch_backend_utils"),
    "replay": ("et_replay.tools.comm_replay", "et_replay.comm.backend.base_backend"),
}


def main() -> None:
    folder = sys.argv.pop(1)
    tool, names = TOOLS[sys.argv.pop(1)]
    sys.path.insert(0, folder)
    # PARAM installs itself under this name; a copy of its repository is enough.
    package = types.ModuleType("param_bench")
    package.__path__ = [folder]
    sys.modules["param_bench"] = package
    importlib.import_module("worker_agent.torch.backend")  # This registers "inart".
    importlib.import_module(names).supportedC10dBackends.append("inart")
    importlib.import_module(tool).main()


if __name__ == "__main__":
    main()
