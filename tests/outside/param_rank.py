"""A rank of PARAM's communication benchmark, with our backend among those that it knows: FOLDER [its options]."""

from __future__ import annotations

import importlib
import sys
import types


def main() -> None:
    folder = sys.argv.pop(1)
    # PARAM installs itself under this name; a copy of its repository is enough.
    package = types.ModuleType("param_bench")
    package.__path__ = [folder]
    sys.modules["param_bench"] = package
    importlib.import_module("worker_agent.torch.backend")  # This registers "inart".
    known = importlib.import_module("param_bench.train.comms.pt.pytorch_backend_utils")
    known.supportedC10dBackends.append("inart")
    importlib.import_module("param_bench.train.comms.pt.comms").main()


if __name__ == "__main__":
    main()
