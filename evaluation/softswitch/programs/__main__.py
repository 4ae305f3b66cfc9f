"""``python -m evaluation.softswitch.programs`` compiles the programs again. Needs p4c-bm2-ss on PATH."""

from __future__ import annotations

import json
import shutil
import subprocess

from evaluation import commands
from evaluation.softswitch.programs import STATEFUL, TABLES

COMPILER = "p4c-bm2-ss"


def main() -> int:
    """Run the command. Return the exit status, 1 where the compiler is missing."""
    commands.parser("softswitch.programs", __doc__).parse_args()
    if shutil.which(COMPILER) is None:
        print(f"{COMPILER} is not on PATH")
        return 1
    for output in (TABLES, STATEFUL):
        source, info = output.with_suffix(".p4"), output.with_suffix(".p4info.txtpb")
        command = [COMPILER, "--std", "p4-16", "--p4runtime-files", str(info), "-o", str(output), source.name]
        subprocess.run(command, check=True, cwd=output.parent, timeout=300)
        root = json.loads(output.read_text())
        root["program"] = source.name
        output.write_text(json.dumps(root, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
