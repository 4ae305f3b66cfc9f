"""A device's multicast groups and clone sessions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from softswitch.dataplane.ports import MAX_PORTS
from softswitch.dataplane.state import State
from softswitch.errors import InvalidValue


class Replication(State):
    """The packet replication of a :class:`softswitch.dataplane.device.Device`."""

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Insert or replace multicast group ``group`` (1..65535), which makes a copy for each (egress port, replication
        id).
        """
        if not 0 < group < 1 << 16:
            raise InvalidValue(f"multicast group {group} is not in 1..65535")
        self._group_write(0, group, replicas, 0)

    def multicast_delete(self, group: int) -> None:
        """Remove a group. Raise ``NotFound`` if there is none."""
        self._check(self._lib.ss_group_write(self.native, 0, group & 0xFFFF, b"", -1, 0), f"multicast group {group}")

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        """Insert or replace clone session ``session`` (0..32767). Clones are cut to ``truncate`` bytes (0: they are
        whole).
        """
        if not 0 <= session < 1 << 15:
            raise InvalidValue(f"clone session {session} is not in 0..32767")
        if not 0 <= truncate < 1 << 32:
            raise InvalidValue(f"cannot truncate to {truncate} bytes")
        self._group_write(1, session, replicas, truncate)

    def clone_delete(self, session: int) -> None:
        """Remove a session. Raise ``NotFound`` if there is none."""
        self._check(self._lib.ss_group_write(self.native, 1, session & 0x7FFF, b"", -1, 0), f"clone session {session}")

    def _group_write(self, sessions: int, number: int, replicas: Sequence[tuple[int, int]], truncate: int) -> None:
        for port, rid in replicas:
            if not (0 <= port < MAX_PORTS and 0 <= rid < 1 << 16):
                raise InvalidValue(f"no such replica: port {port}, replication id {rid}")
        data = struct.pack(f"<{2 * len(replicas)}H", *(number for replica in replicas for number in replica))
        result = self._lib.ss_group_write(self.native, sessions, number, data, len(replicas), truncate)
        self._check(result, "clone session" if sessions else "multicast group")
