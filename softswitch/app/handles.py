"""The handles of table entries and multicast nodes, numbered as bmv2 numbers them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import Device
from softswitch.errors import NotFound

VERSION_SHIFT = 24  # a handle is the number of a place, and above it the number of entries that had the place before
VERSIONS = 256


@dataclass
class TableHandles:
    """The handles of one table's entries.

    Entries that P4Runtime or the program made have handles, too. They are numbered, oldest first, when a command needs
    them.
    """

    device: Device
    table: str
    _places: list[int] = field(default_factory=list)  # number of earlier entries, by place
    _free: list[int] = field(default_factory=list)
    _entries: dict[int, Entry] = field(default_factory=dict)  # by handle
    _handles: dict[int, int] = field(default_factory=dict)  # by the data plane's number of the entry

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> dict[int, Entry]:
        """Return all entries by handle, as they are now."""
        present = {entry.handle: entry for entry in self.device.entries(self.table)}
        for native in [native for native in self._handles if native not in present]:
            self._release(self._handles[native])
        for native, entry in present.items():
            if native in self._handles:
                self._entries[self._handles[native]] = entry
            else:
                self.add(entry)
        return dict(self._entries)

    def add(self, entry: Entry) -> int:
        """Return the handle of a new entry: the lowest free place."""
        if self._free:
            place = heapq.heappop(self._free)
        else:
            place = len(self._places)
            self._places.append(0)
        handle = self._places[place] % VERSIONS << VERSION_SHIFT | place
        self._entries[handle], self._handles[entry.handle] = entry, handle
        return handle

    def find(self, handle: int) -> Entry:
        """Return the entry with a handle, as it is now."""
        known = self._entries.get(handle)
        if known is not None:
            try:
                entry = self.device.get(self.table, known.match, known.priority)
            except NotFound:
                entry = None
            if entry is not None and entry.handle == known.handle:
                return entry
        entry = self.refresh().get(handle)
        if entry is None:
            raise NotFound(f"table {self.table}: no entry has handle {handle}; see table_dump {self.table}")
        return entry

    def remove(self, handle: int) -> None:
        """Release the handle of an entry that was deleted."""
        self._release(handle)

    def _release(self, handle: int) -> None:
        del self._handles[self._entries.pop(handle).handle]
        place = handle & (1 << VERSION_SHIFT) - 1
        self._places[place] += 1
        heapq.heappush(self._free, place)
