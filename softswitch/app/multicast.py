"""The multicast nodes and groups and the mirroring sessions of bmv2, on a device that has groups of replicas."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from softswitch.dataplane.device import Device
from softswitch.dataplane.ports import MAX_PORTS
from softswitch.errors import AlreadyExists, InvalidValue, NotFound

Replicas = list[tuple[int, int]]


@dataclass
class _Node:
    rid: int
    ports: list[int]


@dataclass
class Multicast:
    """The nodes, groups and sessions that commands made.

    A node is a replication id with ports. A group sends a copy to each port of its nodes. A session clones to a port,
    or to the ports of a group.
    """

    device: Device
    nodes: dict[int, _Node] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)  # the nodes of each group
    sessions: dict[int, tuple[str, int]] = field(default_factory=dict)  # ("port" or "group", number) of each session

    def create_group(self, group: int) -> None:
        if group in self.groups:
            raise AlreadyExists(f"multicast group {group} exists already")
        self.device.multicast_set(group, [])
        self.groups[group] = []

    def destroy_group(self, group: int) -> None:
        self._nodes_of(group)
        users = [session for session, chosen in self.sessions.items() if chosen == ("group", group)]
        if users:
            raise InvalidValue(
                f"multicast group {group}: mirroring session {users[0]} uses it; delete the session first"
            )
        self.device.multicast_delete(group)
        del self.groups[group]

    def create_node(self, rid: int, ports: Sequence[int]) -> int:
        """Return the handle of a new node, which belongs to no group yet."""
        _check(rid, ports)
        handle = next(number for number in itertools.count() if number not in self.nodes)
        self.nodes[handle] = _Node(rid, list(ports))
        return handle

    def update_node(self, handle: int, ports: Sequence[int]) -> None:
        node = self._node(handle)
        _check(node.rid, ports)
        node.ports = list(ports)
        for group, nodes in self.groups.items():
            if handle in nodes:
                self._write(group, nodes)

    def destroy_node(self, handle: int) -> None:
        self._node(handle)
        for group, nodes in self.groups.items():
            if handle in nodes:
                self.dissociate(group, handle)
        del self.nodes[handle]

    def associate(self, group: int, handle: int) -> None:
        """Add a node to a group; a node belongs to one group at most."""
        nodes = self._nodes_of(group)
        self._node(handle)
        for other, members in self.groups.items():
            if handle in members:
                raise InvalidValue(f"multicast node {handle} belongs to group {other} already")
        self._write(group, [*nodes, handle])

    def dissociate(self, group: int, handle: int) -> None:
        nodes = self._nodes_of(group)
        if handle not in nodes:
            raise NotFound(f"multicast node {handle} does not belong to group {group}")
        self._write(group, [other for other in nodes if other != handle])

    def mirror(self, session: int, kind: str, number: int) -> None:
        """Clone the packets of a session to a port or to a group of multicast nodes."""
        if kind == "group":
            self._nodes_of(number)
        self.device.clone_set(session, self._session_replicas(kind, number))
        self.sessions[session] = kind, number

    def unmirror(self, session: int) -> None:
        self.session(session)
        self.device.clone_delete(session)
        del self.sessions[session]

    def session(self, session: int) -> tuple[str, int]:
        """Return ("port" or "group", number) of a session."""
        if session not in self.sessions:
            raise NotFound(f"no command made mirroring session {session}; use mirroring_add")
        return self.sessions[session]

    def _write(self, group: int, nodes: list[int]) -> None:
        self.device.multicast_set(group, self._replicas(nodes))
        self.groups[group] = nodes
        for session, (kind, number) in self.sessions.items():
            if (kind, number) == ("group", group):
                self.device.clone_set(session, self._session_replicas(kind, number))

    def _session_replicas(self, kind: str, number: int) -> Replicas:
        return [(number, 0)] if kind == "port" else self._replicas(self.groups[number])

    def _replicas(self, nodes: Sequence[int]) -> Replicas:
        found = [self.nodes[handle] for handle in nodes]
        return [(port, node.rid) for node in found for port in node.ports]

    def _node(self, handle: int) -> _Node:
        if handle not in self.nodes:
            raise NotFound(f"there is no multicast node {handle}; use mc_node_create")
        return self.nodes[handle]

    def _nodes_of(self, group: int) -> list[int]:
        if group not in self.groups:
            raise NotFound(f"no command made multicast group {group}; use mc_mgrp_create")
        return self.groups[group]


def _check(rid: int, ports: Sequence[int]) -> None:
    """Check the replicas of a node, without a change."""
    if rid >> 16:
        raise InvalidValue(f"replication id {rid} does not fit 16 bits")
    if len(set(ports)) != len(ports):
        raise InvalidValue("a port is given twice")
    for port in ports:
        if port >= MAX_PORTS:
            raise InvalidValue(f"port {port} is not in 0..{MAX_PORTS - 1}")
