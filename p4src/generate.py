"""Write what P4 and C need of ``protocol.json``.

    python -m p4src.generate            writes the files below
    python -m p4src.generate --check    exits with 1 and names the files that differ

* ``p4src/include/constants.p4``: included by every P4 program
* ``worker_agent/native/protocol.h``: included by the agents' C engine

Values per packet and slots are in neither: they are build options of a switch program and run-time parameters of the
agents.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from p4src.protocol import DIRECTORY, ETHERNET_BYTES, PROTOCOL, Protocol

ROOT = DIRECTORY.parent
NOTICE = "Generated from p4src/protocol.json by python -m p4src.generate; edit that and run it again."


def constants_p4(protocol: Protocol) -> str:
    """The P4 include: types and constants."""
    lines = [f"// {NOTICE}", "#ifndef INART_CONSTANTS_P4", "#define INART_CONSTANTS_P4", ""]

    def constant(name: str, bits: int, value: int, digits: int = 0) -> None:
        text = f"0x{value:0{digits}X}" if digits else str(value)
        lines.append(f"const bit<{bits}> {name} = {text};")

    constant("INART_VERSION", protocol.field("version").bits, protocol.version)
    constant("INART_ETHERTYPE", 16, protocol.ethertype, 4)
    constant("INART_GROUP_MAC", 48, int.from_bytes(protocol.group_mac, "big"), 12)
    constant("INART_GATEWAY_MAC", 48, int.from_bytes(protocol.gateway_mac, "big"), 12)
    lines.append("")
    for name, value in protocol.flags.items():
        constant(f"INART_FLAG_{name.upper()}", protocol.field("flags").bits, value)
    lines += ["", "// Bytes of a frame before its first value: Ethernet and the aggregation header."]
    constant("INART_VALUES_OFFSET", 32, protocol.values_offset)
    lines += ["", "// Verdicts: indices into verdict_counter."]
    for index, name in enumerate(protocol.verdicts):
        constant(f"INART_VERDICT_{name.upper()}", 8, index)
    lines += [f"#define INART_VERDICTS {len(protocol.verdicts)}", "", "// The aggregation header, after Ethernet."]
    lines.append("header inart_t {")
    lines += [f"    bit<{field.bits}> {field.name};" for field in protocol.header]
    lines += ["}", "", "#endif"]
    return "\n".join(lines) + "\n"


def protocol_h(protocol: Protocol) -> str:
    """The C include: macros only. Offsets are from the start of the Ethernet frame."""
    lines = [f"/* {NOTICE} */", "#ifndef INART_PROTOCOL_H", "#define INART_PROTOCOL_H", ""]

    def macro(name: str, value: object) -> None:
        lines.append(f"#define INART_{name} {value}")

    macro("VERSION", protocol.version)
    macro("ETHERTYPE", f"0x{protocol.ethertype:04X}")
    for name, mac in (("GROUP_MAC", protocol.group_mac), ("GATEWAY_MAC", protocol.gateway_mac)):
        macro(name, "{" + ", ".join(f"0x{octet:02x}" for octet in mac) + "}")
        for index, octet in enumerate(mac):
            macro(f"{name}_{index}", f"0x{octet:02x}")
    lines.append("")
    for name, value in protocol.flags.items():
        macro(f"FLAG_{name.upper()}", value)
    lines += ["", "/* Bytes; offsets from the start of the frame; fields are big-endian. */"]
    macro("ETHERNET_BYTES", ETHERNET_BYTES)
    macro("HEADER_BYTES", protocol.header_bytes)
    for field in protocol.header:
        macro(f"OFFSET_{field.name.upper()}", field.offset)
    macro("OFFSET_VALUES", protocol.values_offset)
    macro("VALUE_BYTES", protocol.value_bits // 8)
    macro("FRAME_BYTES(values)", "(INART_OFFSET_VALUES + INART_VALUE_BYTES * (values))")
    lines.append("")
    macro("MAX_WORKERS", protocol.max_workers)
    lines += ["", "#endif"]
    return "\n".join(lines) + "\n"


def outputs(protocol: Protocol = PROTOCOL) -> dict[Path, str]:
    """Every generated file (absolute path) with its content."""
    return {
        DIRECTORY / "include" / "constants.p4": constants_p4(protocol),
        ROOT / "worker_agent" / "native" / "protocol.h": protocol_h(protocol),
    }


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m p4src.generate", description="constants for P4 and C")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    options = parser.parse_args(arguments)
    status = 0
    for path, content in outputs().items():
        name = path.relative_to(ROOT)
        current = path.read_text() if path.exists() else None
        if options.check:
            if current != content:
                print(f"{name} is out of date: run python -m p4src.generate", file=sys.stderr)
                status = 1
        elif current != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            print(f"wrote {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
