"""Prints the output of ``python -m softswitch stats``: the statistics of a running softswitch as tables."""

from __future__ import annotations

from typing import Any

_COLUMNS = ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes")


def text(stats: dict[str, Any]) -> str:
    """Return the result of ``Switches.stats`` as text."""
    return "\n\n".join(_device(number, device) for number, device in stats["devices"].items())


def _device(number: str, device: dict[str, Any]) -> str:
    p4runtime = device["p4runtime"]
    pipeline = p4runtime["pipeline"]
    state = "restarting" if not p4runtime["up"] else f"pipeline {pipeline[:12]}" if pipeline else "no pipeline"
    name = "" if device["name"] == number else f" ({device['name']})"
    shown = [f"device {number}{name}: {state}", *_ports(device["ports"]), *_drops(device), *_changed(device)]
    for role, one in p4runtime["roles"].items():
        if one["sessions"]:
            primary = one["primary_election_id"]
            who = "no primary" if primary is None else f"primary has election id {primary}"
            shown.append(f"  clients{f' of role {role}' if role else ''}: {one['sessions']}, {who}")
    for what in ("packets", "digests"):
        counts = {key: value for key, value in p4runtime[what].items() if value}
        if counts:
            shown.append(f"  {what}: {_listed(counts)}")
    return "\n".join(shown)


def _ports(ports: dict[str, dict[str, Any]]) -> list[str]:
    if not ports:
        return ["  no port was used yet"]
    rows = [("port", *(name.replace("_", " ") for name in _COLUMNS), "dropped")]
    for number, port in ports.items():
        rows.append((number, *(str(port[name]) for name in _COLUMNS), str(sum(port["drops"].values()))))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _drops(device: dict[str, Any]) -> list[str]:
    """Return lines about dropped frames. The device's counters include those of its ports, which say where frames were
    dropped.
    """
    drops = {reason: count for reason, count in device["drops"].items() if count}
    if not drops:
        return ["  no drops"]
    shown = [f"  drops: {_listed(drops)}"]
    for number, port in device["ports"].items():
        if port["drops"]:
            shown.append(f"    of these at port {number}: {_listed(port['drops'])}")
    return shown


def _changed(device: dict[str, Any]) -> list[str]:
    """Return lines about frames that the shapes of ports have changed."""
    said = {"corrupted": "frames with a flipped bit", "marked": "frames marked as having met congestion"}
    return [
        f"  {words}, sent by port {port}: {one[name]}"
        for port, one in device["ports"].items()
        for name, words in said.items()
        if one[name]
    ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
