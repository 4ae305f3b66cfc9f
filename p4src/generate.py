"""Writes the P4 and C headers with the constants of ``protocol.json``.

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

from p4src.protocol import (
    CHECK_WORDS,
    DIRECTORY,
    DO_NOT_FRAGMENT,
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    FRAGMENT_MASK,
    HEADER_OFFSET,
    IPV4_BYTES,
    IPV4_OFFSET,
    IPV4_VERSION_AND_WORDS,
    PROTOCOL,
    PROTOCOL_UDP,
    UDP_BYTES,
    UDP_OFFSET,
    HostFlag,
    Protocol,
)

ROOT = DIRECTORY.parent
IPV4_FIELDS = {
    "service": 1,
    "total_length": 2,
    "identification": 4,
    "fragment": 6,
    "ttl": 8,
    "protocol": 9,
    "checksum": 10,
    "source": 12,
    "destination": 16,
}
"""Byte offset of each field in the IPv4 header."""
UDP_FIELDS = {"source_port": 0, "destination_port": 2, "length": 4, "checksum": 6}
NOTICE = "Generated from p4src/protocol.json by python -m p4src.generate; edit that and run it again."


def constants_p4(protocol: Protocol) -> str:
    """Return the P4 include: types and constants."""
    lines = [f"// {NOTICE}", "#ifndef INART_CONSTANTS_P4", "#define INART_CONSTANTS_P4", ""]

    def constant(name: str, bits: int, value: int, digits: int = 0) -> None:
        text = f"0x{value:0{digits}X}" if digits else str(value)
        lines.append(f"const bit<{bits}> {name} = {text};")

    constant("INART_VERSION", protocol.field("version").bits, protocol.version)
    constant("INART_GROUP", 32, int(protocol.group), 8)
    constant("INART_UDP_PORT_BASE", 16, protocol.udp_port_base, 4)
    constant("INART_UDP_PORT_MASK", 16, protocol.udp_port_mask, 4)
    constant("INART_GATEWAY_MAC", 48, int.from_bytes(protocol.gateway_mac, "big"), 12)
    lines.append("")
    constant("ETHERTYPE_IPV4", 16, ETHERTYPE_IPV4, 4)
    constant("IPV4_PROTOCOL_UDP", 8, PROTOCOL_UDP)
    lines.append("// Of an IPv4 header's flags and offset: one of these bits at least is set in a fragment.")
    constant("IPV4_FRAGMENT_MASK", 16, FRAGMENT_MASK, 4)
    lines.append("")
    for name, value in protocol.flags.items():
        constant(f"INART_FLAG_{name.upper()}", protocol.field("flags").bits, value)
    lines += ["", "// Lengths in bytes without any value: of a frame, and as IPv4 and UDP have them in their headers."]
    constant("INART_VALUES_OFFSET", 32, protocol.values_offset)
    constant("INART_IPV4_LENGTH", 16, protocol.ipv4_length(0))
    constant("INART_UDP_LENGTH", 16, protocol.udp_length(0))
    lines += ["", "// Verdicts: indices into verdict_counter."]
    for index, name in enumerate(protocol.verdicts):
        constant(f"INART_VERDICT_{name.upper()}", 8, index)
    lines += [f"#define INART_VERDICTS {len(protocol.verdicts)}", "", "// The aggregation header, after UDP."]
    lines.append("header inart_t {")
    lines += [f"    bit<{field.bits}> {field.name};" for field in protocol.header]
    lines += ["}", "", "#endif"]
    return "\n".join(lines) + "\n"


def protocol_h(protocol: Protocol) -> str:
    """Return the C include, which has macros only. Offsets are from the start of the Ethernet frame."""
    lines = [f"/* {NOTICE} */", "#ifndef INART_PROTOCOL_H", "#define INART_PROTOCOL_H", ""]

    def macro(name: str, value: object) -> None:
        lines.append(f"#define INART_{name} {value}")

    macro("VERSION", protocol.version)
    macro("ETHERTYPE_IPV4", f"0x{ETHERTYPE_IPV4:04X}")
    macro("PROTOCOL_UDP", PROTOCOL_UDP)
    macro("GROUP", f"0x{int(protocol.group):08X}")
    macro("GROUP_TEXT", f'"{protocol.group}"')
    macro("UDP_PORT_BASE", f"0x{protocol.udp_port_base:04X}")
    macro("UDP_PORT_MASK", f"0x{protocol.udp_port_mask:04X}")
    macro("PORTS_PER_JOB", protocol.ports_per_job)
    macro("TTL", protocol.ttl)
    macro("FRAGMENT_MASK", f"0x{FRAGMENT_MASK:04X}")
    macro("VERSION_AND_WORDS", f"0x{IPV4_VERSION_AND_WORDS:02X}")
    macro("DO_NOT_FRAGMENT", f"0x{DO_NOT_FRAGMENT:04X}")
    for name, mac in (("GROUP_MAC", protocol.group_mac), ("GATEWAY_MAC", protocol.gateway_mac)):
        macro(name, "{" + ", ".join(f"0x{octet:02x}" for octet in mac) + "}")
        for index, octet in enumerate(mac):
            macro(f"{name}_{index}", f"0x{octet:02x}")
    lines.append("")
    for name, value in protocol.flags.items():
        macro(f"FLAG_{name.upper()}", value)
    lines.append("/* Of hosts alone: switches pass them on. */")
    for flag in HostFlag:
        macro(f"FLAG_{flag.name}", flag.value)
    lines += ["", "/* Bytes; offsets from the start of the frame; fields are big-endian. */"]
    macro("ETHERNET_BYTES", ETHERNET_BYTES)
    macro("IPV4_BYTES", IPV4_BYTES)
    macro("UDP_BYTES", UDP_BYTES)
    macro("HEADER_BYTES", protocol.header_bytes)
    macro("OFFSET_IPV4", IPV4_OFFSET)
    for name, offset in IPV4_FIELDS.items():
        macro(f"OFFSET_IPV4_{name.upper()}", IPV4_OFFSET + offset)
    macro("OFFSET_UDP", UDP_OFFSET)
    for name, offset in UDP_FIELDS.items():
        macro(f"OFFSET_UDP_{name.upper()}", UDP_OFFSET + offset)
    macro("OFFSET_HEADER", HEADER_OFFSET)
    for field in protocol.header:
        macro(f"OFFSET_{field.name.upper()}", field.offset)
    macro("OFFSET_VALUES", protocol.values_offset)
    macro("VALUE_BYTES", protocol.value_bits // 8)
    lines.append("/* Of packets: whole frames, what UDP carries, and the length fields of UDP and IPv4. */")
    macro("FRAME_BYTES(values)", "(INART_OFFSET_VALUES + INART_VALUE_BYTES * (values))")
    macro("PAYLOAD_BYTES(values)", "(INART_HEADER_BYTES + INART_VALUE_BYTES * (values))")
    macro("UDP_LENGTH(values)", "(INART_UDP_BYTES + INART_PAYLOAD_BYTES(values))")
    macro("IPV4_LENGTH(values)", "(INART_IPV4_BYTES + INART_UDP_LENGTH(values))")
    lines.append("")
    macro("MAX_WORKERS", protocol.max_workers)
    macro("CHECK_WORDS", CHECK_WORDS)
    macro("DATA_VALUES(values)", "((values) - INART_CHECK_WORDS)")
    lines += ["", "#endif"]
    return "\n".join(lines) + "\n"


def outputs(protocol: Protocol = PROTOCOL) -> dict[Path, str]:
    """Return every generated file (absolute path) with its content."""
    return {
        DIRECTORY / "include" / "constants.p4": constants_p4(protocol),
        ROOT / "worker_agent" / "native" / "protocol.h": protocol_h(protocol),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
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
