"""`python -m controlplane.common.rpc.generate`: inart.proto -> inart_pb2.py and inart_pb2.pyi; bri_wire.proto alike.

Use protoc 3.21 (Debian 12's protobuf-compiler): what it writes runs under every protobuf from 4 on, so that our agents
go beside whatever a training stack brings; what a later one writes refuses protobufs older than itself. The results are
committed, so only who changes a .proto needs protoc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
SOURCES = (DIRECTORY / "inart.proto", DIRECTORY.parents[1] / "tests" / "tofino" / "wire" / "bri_wire.proto")


def outputs(source: Path) -> tuple[str, str]:
    """Names of the files that are generated beside a source."""
    return f"{source.stem}_pb2.py", f"{source.stem}_pb2.pyi"


def usable_protoc() -> str | None:
    """Path of a protoc 3.20 or 3.21, or None."""
    protoc = shutil.which("protoc")
    if protoc is None:
        return None
    version = subprocess.run([protoc, "--version"], capture_output=True, text=True, check=True).stdout
    return protoc if re.search(r"\b3\.(20|21)\.", version) else None


def generate(source: Path, directory: Path) -> None:
    """Write the outputs of `source` into `directory`. Raises RuntimeError without a usable protoc."""
    protoc = usable_protoc()
    if protoc is None:
        raise RuntimeError("needs protoc 3.20 or 3.21 on PATH: apt-get install protobuf-compiler (Debian 12)")
    command = [protoc, f"-I{source.parent}", f"--python_out={directory}", f"--pyi_out={directory}", source.name]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    try:
        for proto in SOURCES:
            generate(proto, proto.parent)
    except RuntimeError as error:
        sys.exit(str(error))
