"""Action profiles and action selectors of a device: members, groups, and the table entries that use them.

A member has a slot in the data plane; in a group where it has weight w it has w slots, so that choosing is one division
whatever the weights are. Slots are numbered as bmv2 behind its P4Runtime server numbers them (the lowest free one
first), and a group's members are in the order of their slots, so that a hash chooses the same member in both.
"""

from __future__ import annotations

import ctypes
import heapq
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from softswitch.dataplane import native
from softswitch.errors import AlreadyExists, CapacityExceeded, InvalidValue, NotFound, StillInUse

MAX_GROUP = 1 << 16  # largest sum of the weights in a group
MAX_SLOTS = 1 << 24  # most slots of a profile


@dataclass(frozen=True)
class Member:
    """A member of an action profile, by id, to which a table entry can point."""

    id: int


@dataclass(frozen=True)
class Group:
    """A group of an action profile, by id, to which a table entry can point."""

    id: int


@dataclass(frozen=True)
class GroupMember:
    """A member of a group, with its weight, and the port that must be up for it to be chosen (``None``: it depends on
    no port).
    """

    id: int
    weight: int = 1
    watch_port: int | None = None


@dataclass(frozen=True)
class ProfileInfo:
    """An action profile: the actions that its members can have, its declared size, and whether it is a selector.

    Only a selector has groups. The control plane has to keep to the declared size.
    """

    name: str
    actions: tuple[str, ...]
    size: int
    with_selector: bool


@dataclass
class _Member:
    action: str
    params: tuple[int, ...]
    slots: list[int]
    entries: int = 0  # number of entries that point to it
    weights: Counter[int] = field(default_factory=Counter)  # weight in each group that it is in
    choice: int | None = None


@dataclass
class _Group:
    members: tuple[GroupMember, ...]
    choice: int
    entries: int = 0


class _Numbers:
    """A source of numbers, which hands out the lowest free one."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heapq.heappush(self._free, number)


class _Slots:
    """The slots of a profile's members in the data plane; ``handle`` returns the native device."""

    def __init__(
        self, name: str, index: int, handle: Callable[[], int], pack: Callable[[str, Sequence[int]], tuple[int, bytes]]
    ) -> None:
        self._name = name
        self._index = index
        self._handle = handle
        self._pack = pack
        self._lib = native.library()
        self._numbers = _Numbers()

    def write(self, slot: int, number: int, data: bytes) -> None:
        """Write an action's number and parameters to a slot."""
        result = self._lib.ss_member_set(self._handle(), self._index, slot, number, data, len(data))
        if result:
            raise CapacityExceeded(f"action profile {self._name}: no memory for another member ({result})")

    def grow(self, state: _Member, count: int) -> None:
        """Give the member at least ``count`` slots."""
        number, data = self._pack(state.action, state.params)
        while len(state.slots) < count:
            slot = self._numbers.take()
            try:
                if slot >= MAX_SLOTS:
                    raise CapacityExceeded(f"action profile {self._name}: more than {MAX_SLOTS} members")
                self.write(slot, number, data)
            except CapacityExceeded:
                self._numbers.give_back(slot)
                raise
            state.slots.append(slot)

    def shrink(self, state: _Member, count: int) -> None:
        """Free the member's slots above ``count``."""
        while len(state.slots) > count:
            slot = state.slots.pop()
            self._lib.ss_member_free(self._handle(), self._index, slot)
            self._numbers.give_back(slot)


class ActionProfile:
    """One action profile of one device. Names and values of actions are those of the program. All methods are
    thread-safe.

    ``handle`` returns the native device. ``pack`` returns the number and parameters of an action, or raises
    ``InvalidValue``. ``is_up`` returns whether a port is up.
    """

    def __init__(
        self,
        info: ProfileInfo,
        index: int,
        handle: Callable[[], int],
        pack: Callable[[str, Sequence[int]], tuple[int, bytes]],
        is_up: Callable[[int], bool],
    ) -> None:
        self.info = info
        self.handle = handle
        self.is_up = is_up
        self.lock = threading.RLock()
        self._index = index
        self._pack = pack
        self._lib = native.library()
        self._members: dict[int, _Member] = {}
        self._groups: dict[int, _Group] = {}
        self._slots = _Slots(info.name, index, lambda: self.handle(), pack)
        self._choices = _Numbers()
        self._chosen: dict[int, Member | Group] = {}  # by number of the choice
        self._watchers: dict[int, set[int]] = {}  # groups with a member that depends on a port, by port

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def __contains__(self, member: int) -> bool:
        return member in self._members

    # -------------------------------------------------------------------------------------------------------- members

    def insert_member(self, member: int, action: str, params: Sequence[int]) -> None:
        with self.lock:
            if member in self._members:
                raise AlreadyExists(f"action profile {self.info.name} has a member {member} already")
            state = _Member(action, tuple(params), [])
            self._slots.grow(state, 1)
            self._members[member] = state

    def modify_member(self, member: int, action: str, params: Sequence[int]) -> None:
        """Change a member's action, from now on for all entries and groups that use it."""
        with self.lock:
            state = self._member(member)
            number, data = self._pack(action, params)
            for slot in state.slots:
                self._slots.write(slot, number, data)
            state.action, state.params = action, tuple(params)

    def delete_member(self, member: int) -> None:
        """Delete a member. Raise ``StillInUse`` if an entry or a group has it."""
        with self.lock:
            state = self._member(member)
            if state.entries:
                raise StillInUse(f"member {member} of {self.info.name}: {state.entries} table entries point to it")
            if state.weights:
                raise StillInUse(f"member {member} of {self.info.name} is in a group")
            if state.choice is not None:
                self._free_choice(state.choice)
            self._slots.shrink(state, 0)
            del self._members[member]

    def member(self, member: int) -> tuple[str, tuple[int, ...]]:
        """Return (action, parameters) of a member."""
        with self.lock:
            state = self._member(member)
            return state.action, state.params

    def members(self) -> list[int]:
        with self.lock:
            return list(self._members)

    def _member(self, member: int) -> _Member:
        state = self._members.get(member)
        if state is None:
            raise NotFound(f"action profile {self.info.name} has no member {member}")
        return state

    # --------------------------------------------------------------------------------------------------------- groups

    def insert_group(self, group: int, members: Sequence[GroupMember]) -> None:
        with self.lock:
            if not self.info.with_selector:
                raise InvalidValue(f"action profile {self.info.name} has no selector, so no groups")
            if group in self._groups:
                raise AlreadyExists(f"action selector {self.info.name} has a group {group} already")
            state = _Group((), self._choices.take())
            try:
                self._set(group, state, members)
            except BaseException:
                self._choices.give_back(state.choice)
                raise
            self._groups[group] = state
            self._chosen[state.choice] = Group(group)

    def modify_group(self, group: int, members: Sequence[GroupMember]) -> None:
        with self.lock:
            self._set(group, self._group(group), members)

    def delete_group(self, group: int) -> None:
        """Delete a group. Raise ``StillInUse`` if an entry points to it."""
        with self.lock:
            state = self._group(group)
            if state.entries:
                raise StillInUse(f"group {group} of {self.info.name}: {state.entries} table entries point to it")
            self._set(group, state, ())
            self._free_choice(state.choice)
            del self._groups[group]

    def group(self, group: int) -> tuple[GroupMember, ...]:
        with self.lock:
            return self._group(group).members

    def groups(self) -> list[int]:
        with self.lock:
            return list(self._groups)

    def _group(self, group: int) -> _Group:
        state = self._groups.get(group)
        if state is None:
            raise NotFound(f"action profile {self.info.name} has no group {group}")
        return state

    def _set(self, group: int, state: _Group, members: Sequence[GroupMember]) -> None:
        """Change a group's members; on an error nothing changes."""
        new = {m.id: m for m in members}
        if len(new) != len(members):
            raise InvalidValue(f"group {group} of {self.info.name}: a member is given twice; use weights")
        if any(m.weight < 1 for m in members):
            raise InvalidValue(f"group {group} of {self.info.name}: a weight is not positive")
        if sum(m.weight for m in members) > MAX_GROUP:
            raise CapacityExceeded(f"group {group} of {self.info.name}: the weights make more than {MAX_GROUP}")
        for m in members:
            self._member(m.id)
        old = {m.id: m for m in state.members}
        affected = sorted(old.keys() | new.keys())
        try:
            for member in affected:
                if member in new:
                    self._slots.grow(self._members[member], new[member].weight)
            self._write_choice(state.choice, members)
        except BaseException:
            for member in affected:
                self._trim(self._members[member])
            raise
        for member in affected:
            weights = self._members[member].weights
            if member in new:
                weights[new[member].weight] += 1
            if member in old:
                weights[old[member].weight] -= 1
                if not weights[old[member].weight]:
                    del weights[old[member].weight]
        for member in affected:
            self._trim(self._members[member])
        for port in {m.watch_port for m in state.members if m.watch_port is not None}:
            self._watchers[port].discard(group)
        for port in {m.watch_port for m in members if m.watch_port is not None}:
            self._watchers.setdefault(port, set()).add(group)
        state.members = tuple(members)

    def _trim(self, state: _Member) -> None:
        self._slots.shrink(state, max(state.weights, default=1))

    def _write_choice(self, choice: int, members: Sequence[GroupMember]) -> None:
        """Write the slots of the members whose ports are up, in order."""
        slots: list[int] = []
        # Ports are asked once each: members share ports, and asking the kernel costs a system call.
        ports = {m.watch_port for m in members}
        up = {port for port in ports if port is None or self.is_up(port)}
        for m in members:
            if m.watch_port in up:
                slots += self._members[m.id].slots[: m.weight]
        self._set_choice(choice, slots)

    def _set_choice(self, choice: int, slots: list[int]) -> None:
        data = array("I", sorted(slots))
        at = (ctypes.c_uint32 * len(slots)).from_buffer(data) if slots else None
        if self._lib.ss_choice_set(self.handle(), self._index, choice, at, len(slots)):
            raise CapacityExceeded(f"action profile {self.info.name}: out of memory")

    def _free_choice(self, choice: int) -> None:
        self._lib.ss_choice_free(self.handle(), self._index, choice)
        self._chosen.pop(choice, None)
        self._choices.give_back(choice)

    def port_changed(self, port: int) -> None:
        """Choose among the members that remain, after a port went up or down."""
        with self.lock:
            for group in tuple(self._watchers.get(port, ())):
                state = self._groups[group]
                self._write_choice(state.choice, state.members)

    def refresh(self) -> None:
        """Check all watched ports, which may have gone up or down unnoticed."""
        for port in tuple(self._watchers):
            self.port_changed(port)

    # ---------------------------------------------------------------------------------------------------------- users

    def take(self, chosen: Member | Group) -> int:
        """Return the choice for a table entry with this member or group; call `release` when the entry is removed."""
        with self.lock:
            if isinstance(chosen, Group):
                group = self._group(chosen.id)
                group.entries += 1
                return group.choice
            member = self._member(chosen.id)
            if member.choice is None:
                choice = self._choices.take()
                try:
                    self._set_choice(choice, member.slots[:1])
                except BaseException:
                    self._choices.give_back(choice)
                    raise
                member.choice = choice
                self._chosen[choice] = chosen
            member.entries += 1
            return member.choice

    def release(self, chosen: Member | Group) -> None:
        """Take note that an entry does not point to this member or group any more."""
        with self.lock:
            if isinstance(chosen, Group):
                self._groups[chosen.id].entries -= 1
            else:
                self._members[chosen.id].entries -= 1

    def chosen(self, choice: int) -> Member | Group | None:
        """Return the member or group of a choice; ``None`` if it was released in the meantime."""
        with self.lock:
            return self._chosen.get(choice)
