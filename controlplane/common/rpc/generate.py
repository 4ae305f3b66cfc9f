"""`python -m controlplane.common.rpc.generate` makes the Python modules and stubs of inart.proto and bri_wire.proto.

Use protoc 3.21 (Debian 12's protobuf-compiler): its output runs under every protobuf from 4 on, so that our agents run
beside whatever a training stack installs; the output of a later protoc refuses protobufs older than itself. The
results are committed, so only those who change a .proto need protoc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
SOURCES = (DIRECTORY / "inart.proto", DIRECTORY.parents[2] / "tests" / "tofino" / "wire" / "bri_wire.proto")


def outputs(source: Path) -> tuple[str, str]:
    """Return the names of the files that are generated from a source."""
    return f"{source.stem}_pb2.py", f"{source.stem}_pb2.pyi"


def usable_protoc() -> str | None:
    """Return the path of a protoc 3.20 or 3.21, or None."""
    protoc = shutil.which("protoc")
    if protoc is None:
        return None
    version = subprocess.run([protoc, "--version"], capture_output=True, text=True, check=True).stdout
    return protoc if re.search(r"\b3\.(20|21)\.", version) else None


def generate(source: Path, directory: Path) -> None:
    """Write the outputs of `source` into `directory`. Raise RuntimeError where there is no usable protoc."""
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
