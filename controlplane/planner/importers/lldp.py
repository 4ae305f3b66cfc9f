"""LLDP neighbours, as lldpd prints them (`lldpcli -f json show neighbors`, or `-f json0`): one file per node, named
after it, in a folder. One file alone is the neighbourhood of its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controlplane.common.inputs import read_json
from controlplane.planner.importers.build import Foreign, ForeignLink, node_name, shown
from controlplane.planner.topology import TopologyError

FORWARDS = ("Bridge", "Router")
"""Capabilities of nodes that are switches."""
SPEED = re.compile(r"\b(\d+)\s*(G?)(?:ig)?base", re.IGNORECASE)
"""The speed in the name of a medium, such as 1000BaseTFD, 10GigBaseLR or 100GbaseCR4."""


def read_folder(folder: Path) -> Foreign:
    """Return the network that the files NAME.json of a folder describe. Raise OSError or TopologyError if one is
    wrong.
    """
    contents = {}
    for path in sorted(folder.glob("*.json")):
        try:
            contents[path.stem] = read_json(path)
        except ValueError as error:
            raise TopologyError(f"{path.name}: {error}") from None
    if not contents:
        raise TopologyError("the folder has no file NAME.json (lldpcli -f json show neighbors > NAME.json, per node)")
    return read(contents)


def read(contents: Mapping[str, Any]) -> Foreign:
    """Return the network that the nodes see, by the names of the nodes. Raise TopologyError if one is wrong.

    Both ends of a cable report it, but they may name its ports differently. So there are as many cables between two
    nodes as the node with the most interfaces towards the other reports.
    """
    found = Foreign("LLDP", unit="Mbit/s", ignored={"port names", "descriptions", "addresses"})
    seen: dict[frozenset[str], dict[str, list[ForeignLink]]] = {}
    forwarding: dict[str, bool] = {}
    for node, content in contents.items():
        node = node_name(node, "a file's name")
        if not isinstance(content, Mapping) or "lldp" not in content:
            raise TopologyError(f'{node}: it must be an object with "lldp" (lldpcli -f json show neighbors)')
        for interface, about in _interfaces(content["lldp"], node):
            neighbour, capabilities = _chassis(about, f"{node}, interface {interface}")
            if capabilities is not None:
                forwarding[neighbour] = capabilities
            link = ForeignLink(node, neighbour, _speed(about), ports=(interface, ""))
            links = seen.setdefault(frozenset((node, neighbour)), {}).setdefault(node, [])
            if all(one.ports != link.ports for one in links):  # the neighbour may be heard by two protocols
                links.append(link)
    for ends, views in seen.items():
        if len(views) == 1 and len(ends) == 2 and ends <= set(contents):
            (one,) = views
            (other,) = ends - {one}
            found.notes.append(
                f"{one} sees {other}, which does not see {one}: files are named as nodes name themselves"
            )
    for views in seen.values():
        most = max(views.values(), key=len)
        found.links += most
    found.nodes = list(dict.fromkeys([*contents, *(link.target for link in found.links)]))
    found.servers = {node for node, forwards in forwarding.items() if not forwards}
    return found


def _interfaces(content: Any, node: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield interfaces with a neighbour. json0 has lists with `name`; json has objects, and lists of these if there are
    several.
    """
    for part in _several(content):
        for entry in _several(_object(part, node).get("interface", [])):
            if "name" in _object(entry, node):
                yield str(entry["name"]), entry
                continue
            for name, abouts in entry.items():
                for about in _several(abouts):
                    yield str(name), _object(about, f"{node}, interface {name}")


def _chassis(about: Mapping[str, Any], what: str) -> tuple[str, bool | None]:
    """Return a neighbour's name, or its id if it sends no name, and whether it forwards packets (None: unknown)."""
    chassis = _object(_first(about.get("chassis", {})), what)
    if "id" not in chassis and "name" not in chassis:  # json: {"spine1": {"id": ...}}
        name, chassis = next(iter(chassis.items()), ("", {}))
        chassis = _object(chassis, what)
    else:
        name = _value(chassis.get("name")) or _value(chassis.get("id"))
    given = chassis.get("capability")
    capabilities = [_object(one, what) for one in _several(given)] if given is not None else None
    forwards = None
    if capabilities is not None:
        forwards = any(one.get("type") in FORWARDS and one.get("enabled") is True for one in capabilities)
    return node_name(name, f"{what}: the neighbour's name"), forwards


def _speed(about: Mapping[str, Any]) -> float | None:
    """Return the speed of a neighbour's port in Mbit/s; None if it does not send it."""
    port = _first(about.get("port", {}))
    negotiation = _first(port.get("auto-negotiation", {})) if isinstance(port, Mapping) else {}
    medium = _value(negotiation.get("current")) if isinstance(negotiation, Mapping) else ""
    speed = SPEED.search(str(medium)[:200])
    return int(speed[1][:9]) * (1000.0 if speed[2] else 1.0) if speed else None


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _first(value: Any) -> Any:
    return next(iter(_several(value)), {})


def _value(value: Any) -> Any:
    """Return the value of json0's [{"value": ...}] and json's {"value": ...} or plain one; "" for none."""
    value = _first(value)
    return value.get("value", "") if isinstance(value, Mapping) else (value or "")


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TopologyError(f"{what}: an object was expected, got {shown(value)}")
    return value
