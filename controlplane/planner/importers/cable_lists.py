"""Cable lists in CSV: of NetBox (its import form, or the export "All data"), and of SONiC's lab (`*_links.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from controlplane.planner.importers.build import Foreign, ForeignLink, node_name, number
from controlplane.planner.topology import TopologyError

NETBOX = ("side_a_device", "side_a_name", "side_b_device", "side_b_name")
EXPORT = ("Device A", "Termination A", "Device B", "Termination B")
"""Columns of NetBox's export with the meaning of those in `NETBOX`."""
SONIC = ("StartDevice", "StartPort", "EndDevice", "EndPort")
PANELS = ("dcim.frontport", "dcim.rearport")
SERVER_TYPE = "Server"
"""Type of servers in the list of devices beside SONiC's list of links."""


def read(content: bytes, path: Path) -> Foreign:
    """Return the network in a file. Raise TopologyError if it is of neither project, or wrong."""
    columns, rows = _table(content)
    if set(NETBOX) <= columns or set(EXPORT) <= columns:
        return _netbox(NETBOX if set(NETBOX) <= columns else EXPORT, columns, rows)
    if set(SONIC) <= columns:
        return _sonic(columns, rows, path)
    if {"Termination A", "Termination B"} <= columns:
        raise TopologyError('NetBox\'s export lacks the columns Device A and Device B; export "All data"')
    raise TopologyError(
        f"its first line must have the columns {', '.join(NETBOX)} (NetBox's cables) or {', '.join(SONIC)} (SONiC's "
        "links)"
    )


def _table(content: bytes) -> tuple[set[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return the columns of a CSV file, and its rows with their line numbers."""
    try:
        reader = csv.DictReader(StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names = [name.strip() for name in reader.fieldnames or ()]
    except UnicodeDecodeError as error:
        raise TopologyError(f"it is not UTF-8 text (byte {error.start + 1})") from None
    except csv.Error as error:
        raise TopologyError(f"it is no CSV: {error}") from None
    if len(set(names)) < len(names):
        raise TopologyError(f"column {next(name for name in names if names.count(name) > 1)!r} is given twice")
    reader.fieldnames = names

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        try:
            for row in reader:
                if any(row.pop(None, [])):  # None is the key of values without a column
                    raise TopologyError(f"line {reader.line_num}: it has more values than the {len(names)} columns")
                yield reader.line_num, {name: (value or "").strip() for name, value in row.items()}
        except csv.Error as error:
            raise TopologyError(f"line {reader.line_num}: {error}") from None

    return set(names), rows()


def _netbox(ends: tuple[str, ...], columns: set[str], rows: Iterator[tuple[int, dict[str, str]]]) -> Foreign:
    used = {*ends, "side_a_type", "side_b_type", "status", "Status", "type", "Type"}
    found = Foreign("NetBox cables", ignored=columns - used | {"port names"})
    others = planned = 0
    for line, row in rows:
        kinds = [row.get(side, "") or "dcim.interface" for side in ("side_a_type", "side_b_type")]
        kinds = [kind if "." in kind else f"dcim.{kind}" for kind in kinds]
        if any(kind in PANELS for kind in kinds):
            raise TopologyError(
                f"line {line}: the cable ends at a patch panel, and the file lacks the panel's inner wiring; list "
                "cables from interface to interface"
            )
        if (row.get("status") or row.get("Status") or "connected").lower() != "connected":
            planned += 1
            continue
        power = (row.get("type") or row.get("Type") or "").lower() == "power"
        devices = [row[end] for end in (ends[0], ends[2])]
        if power or kinds != ["dcim.interface"] * 2 or not all(devices):
            others += 1
            continue
        u, v = devices
        found.links.append(ForeignLink(u, v, ports=(row[ends[1]] or f"line {line}", row[ends[3]] or f"line {line}")))
    if planned:
        found.notes.append(f"left out: {planned} cables that are not connected (status)")
    if others:
        found.notes.append(f"left out: {others} cables that do not lead from interface to interface")
    return found


def _sonic(columns: set[str], rows: Iterator[tuple[int, dict[str, str]]], path: Path) -> Foreign:
    found = Foreign("SONiC links", unit="Mbit/s", ignored=columns - {*SONIC, "BandWidth"} | {"port names"})
    for line, row in rows:
        u, v = (node_name(row[end], f"line {line}: {end}") for end in (SONIC[0], SONIC[2]))
        rate = number(row["BandWidth"], f"line {line}: BandWidth") if row.get("BandWidth") else None
        found.links.append(ForeignLink(u, v, rate, ports=(row[SONIC[1]], row[SONIC[3]])))
    devices = path.with_name(path.name.replace("_links", "_devices"))
    if devices != path and devices.is_file():
        types, listed = _table(devices.read_bytes())
        if {"Hostname", "Type"} <= types:
            found.servers = {row["Hostname"] for _, row in listed if row["Type"] == SERVER_TYPE}
            found.notes.append(f"servers are the devices of type {SERVER_TYPE} in {devices.name}")
    return found
