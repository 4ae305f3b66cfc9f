"""The test programs: their P4 sources, the compiled JSON and P4Runtime description beside them, and how to rebuild.

``python -m softswitch.tests.dataplane.programs`` compiles all of them again; it needs p4c-bm2-ss on PATH.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from softswitch import Program

DIRECTORY = Path(__file__).parent / "p4"
COMPILER = "p4c-bm2-ss"
NAMES = tuple(sorted(path.stem for path in DIRECTORY.glob("*.p4")))
"""Those with a scenario (scenarios.py) and what bmv2 answered."""
ON_LINKS = ("links/waits",)
"""Those of single tests."""


def json_path(name: str) -> Path:
    return DIRECTORY / f"{name}.json"


def p4info_path(name: str) -> Path:
    return DIRECTORY / f"{name}.p4info.txtpb"


@functools.cache
def program(name: str) -> Program:
    """Return the compiled program, loaded once per process."""
    return Program.load(json_path(name).read_bytes())


def compact(text: str, keep_lines: bool = True) -> str:
    """Return p4c's JSON without the source text that it repeats (and without line numbers), and without white space."""
    dropped = {"source_fragment"} if keep_lines else {"source_info"}

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in dropped}
        return [strip(v) for v in value] if isinstance(value, list) else value

    root = json.loads(text)
    root["program"] = Path(root["program"]).name
    return json.dumps(strip(root), separators=(",", ":")).replace('},{"name"', '},\n{"name"') + "\n"


def compile_program(name: str, directory: Path) -> None:
    """Write ``name``.json and ``name``.p4info.txtpb to ``directory``."""
    info = directory / f"{name}.p4info.txtpb"
    with tempfile.TemporaryDirectory() as work:
        raw = Path(work) / "raw.json"
        command = [COMPILER, "--std", "p4-16", "--p4runtime-files", str(info), "-o", str(raw), f"{name}.p4"]
        subprocess.run(command, check=True, cwd=DIRECTORY, capture_output=True, timeout=300)
        (directory / f"{name}.json").write_text(compact(raw.read_text(), keep_lines=name != "arithmetic"))


def main() -> int:
    if shutil.which(COMPILER) is None:
        print(f"{COMPILER} is not on PATH")
        return 1
    for name in (*NAMES, *ON_LINKS):
        compile_program(name, DIRECTORY)
        print(name, json_path(name).stat().st_size, "bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
