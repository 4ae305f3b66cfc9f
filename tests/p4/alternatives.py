"""Other ways to hold a slot's values in registers, to be measured against the program's own.

    python -m tests.p4.alternatives --width 128 [--slices] [--values 256] --output FOLDER

This writes the program with few wide registers instead of one of 32 bits per value, compiled, into FOLDER for
``python -m tests.p4.measure --artifact FOLDER``. The lanes of a wide register are added either slice by slice or all at
once: with H the highest bit of every lane, ((a & ~H) + (b & ~H)) ^ ((a ^ b) & H). These programs are only for
measurements: they add, and have no maximum.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from p4src.build import BuildError, compile_program
from p4src.protocol import DIRECTORY, PROTOCOL


def lane_sum(width: int, index: int, slices: bool) -> str:
    """Return P4 statements that add register ``index``, read into ``held``, to the packet's field."""
    field = f"hdr.values.wide_{index}"
    if slices:
        lanes = [f"[{low + 31}:{low}]" for low in range(0, width, 32)]
        return "\n".join(f"        {field}{lane} = {field}{lane} + held{lane};" for lane in lanes)
    high = f"{width}w0x" + "80000000" * (width // 32)
    low = f"{width}w0x" + "7FFFFFFF" * (width // 32)
    return f"        {field} = ((held & {low}) + ({field} & {low})) ^ ((held ^ {field}) & {high});"


def values_p4(values: int, width: int, slices: bool) -> str:
    """Return the text that replaces values.p4."""
    count = values * 32 // width
    read = [f"        sum_{i}.read(held, meta.slot);\n{lane_sum(width, i, slices)}" for i in range(count)]
    write = [f"        sum_{i}.write(meta.slot, hdr.values.wide_{i});" for i in range(count)]
    send = [f"        sum_{i}.read(hdr.values.wide_{i}, meta.slot);" for i in range(count)]
    lines = [
        "control Values(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {",
        *(f"    register<bit<{width}>>(INART_SLOTS) sum_{i};" for i in range(count)),
        f"    bit<{width}> held;",
        "    action store() {",
        *write,
        "    }",
        "    action add() {",
        *(f"{first}\n{second}" for first, second in zip(read, write, strict=True)),
        "    }",
        "    action add_send() {",
        *read,
        "    }",
        "    action send() {",
        *send,
        "    }",
        "    apply {",
        "        if (meta.operation == operation_t.ADD) { add(); }",
        "        else if (meta.operation == operation_t.STORE) { store(); }",
        "        else if (meta.operation == operation_t.ADD_SEND) { add_send(); }",
        "        else if (meta.operation == operation_t.SEND) { send(); }",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def build(values: int, width: int, slices: bool, output: Path) -> None:
    """Compile the alternative into ``output``; raises BuildError."""
    if width % 32 or values * 32 % width:
        raise BuildError(f"{values} values do not fill registers of {width} bits")
    defaults = PROTOCOL.targets["v1model"]
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch)
        for name in ("bmv2", "include"):
            shutil.copytree(DIRECTORY / name, sources / name)
        (sources / "bmv2" / "values.p4").write_text(values_p4(values, width, slices))
        headers = sources / "bmv2" / "headers.p4"
        fields = "".join(f"    bit<{width}> wide_{i};\n" for i in range(values * 32 // width))
        headers.write_text(headers.read_text().replace("    INART_EACH_VALUE(INART_VALUE_FIELD)\n", fields))
        compile_program(
            values, defaults.slots, defaults.label_table_size, defaults.route_table_size, output, sources=sources
        )


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.p4.alternatives")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--slices", action="store_true")
    parser.add_argument("--values", type=int, default=256)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        build(options.values, options.width, options.slices, options.output)
    except BuildError as error:
        print(f"tests.p4.alternatives: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {options.values * 32 // options.width} registers of {options.width} bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
