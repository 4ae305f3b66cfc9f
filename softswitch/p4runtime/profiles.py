"""``ActionProfileMember``, ``ActionProfileGroup``, and the actions of entries in tables with an action profile.

The P4Runtime specification describes this in "ActionProfileMember & ActionProfileGroup" and "One Shot Action Selector
Programming". A one-shot action set becomes a group and members of its own, with ids that no client can name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from google.rpc import code_pb2

from softswitch.app.config import MAX_PORT
from softswitch.dataplane.device import Device
from softswitch.dataplane.profiles import MAX_GROUP, ActionProfile, Group, GroupMember, Member
from softswitch.p4runtime import bytestring
from softswitch.p4runtime.actions import decode_params, encode_action
from softswitch.p4runtime.schema import ActionSchema, ProfileSchema, Schema, TableSchema
from softswitch.p4runtime.status import P4RuntimeError, invalid, out_of_range, unimplemented
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.undo import Journal
from softswitch.p4runtime.unknown import later_field

_HASH, _SUM_OF_WEIGHTS, _SUM_OF_MEMBERS = 1, 1, 2  # enumerators of ActionProfileActionSet
_OWN_IDS = 1 << 32  # the ids of one-shot groups and members begin here


class ProfileAccess:
    """Action profiles of one device under one schema; the caller holds the device's lock during calls."""

    def __init__(self, device: Device, schema: Schema) -> None:
        self._device = device
        self._schema = schema
        self._groups: dict[tuple[int, int], p4rt.ActionProfileGroup] = {}  # groups as the client wrote them
        self._sets: dict[tuple[int, int], p4rt.ActionProfileActionSet] = {}  # one-shot sets, by (profile, group)
        self._own: dict[tuple[int, int], tuple[list[int], int]] = {}  # members and size of each one-shot group
        self._one_shots: Counter[int] = Counter()  # number of one-shot sets per profile
        self._sizes: Counter[int] = Counter()  # per profile: sum of weights (or number of members) in all its groups
        self._next_id = _OWN_IDS

    # --- members ---

    def write_member(self, kind: int, entry: p4rt.ActionProfileMember, journal: Journal) -> None:
        profile = self._schema.profile(entry.action_profile_id)
        native, member = self._native(profile), entry.member_id
        _require_id(member, "member")
        if kind == p4rt.Update.DELETE:
            action, params = native.member(member)
            native.delete_member(member)
            journal.add(lambda: native.insert_member(member, action, params))
            return
        call = self._action(profile, entry.action, entry.HasField("action"))
        if kind == p4rt.Update.INSERT:
            self._require_style(profile, one_shot=False)
            if profile.size and len(native) >= profile.size:
                raise _exhausted(f"action profile {profile.name} has its {profile.size} members already")
            native.insert_member(member, *call)
            journal.add(lambda: native.delete_member(member))
        else:
            old = native.member(member)
            native.modify_member(member, *call)
            journal.add(lambda: native.modify_member(member, *old))

    def read_members(self, query: p4rt.ActionProfileMember) -> Iterator[p4rt.Entity]:
        """Return the members that an ``ActionProfileMember`` in a ReadRequest selects by its ids."""
        profiles = self._selected(query.action_profile_id, query.member_id)
        found: list[tuple[ProfileSchema, int, str, tuple[int, ...]]] = []
        for profile in profiles:
            native = self._native(profile)
            wanted = [query.member_id] if query.member_id else native.members()
            found += [(profile, m, *native.member(m)) for m in wanted if m < _OWN_IDS and m in native]

        def entity(profile: ProfileSchema, member: int, action: str, params: tuple[int, ...]) -> p4rt.Entity:
            answer = p4rt.Entity()
            entry = answer.action_profile_member
            entry.action_profile_id, entry.member_id = profile.id, member
            encode_action(entry.action, profile.actions_by_name[action], params)
            return answer

        return (entity(*one) for one in found)

    # --- groups ---

    def write_group(self, kind: int, entry: p4rt.ActionProfileGroup, journal: Journal) -> None:
        profile = self._schema.profile(entry.action_profile_id)
        native, group, identity = self._native(profile), entry.group_id, (profile.id, entry.group_id)
        _require_id(group, "group")
        if not profile.with_selector:
            raise invalid(f"action profile {profile.name} has no selector, so no groups")
        old = self._groups.get(identity)
        if kind == p4rt.Update.DELETE:
            members = native.group(group)
            native.delete_group(group)
            del self._groups[identity]
            self._sizes[profile.id] -= _size(profile, members)

            def restore() -> None:
                native.insert_group(group, members)
                self._keep(identity, old)
                self._sizes[profile.id] += _size(profile, members)

            journal.add(restore)
            return
        if later_field(entry, "group_action") is not None and entry.HasField("group_action"):
            raise unimplemented(f"group {group}: group_action is not supported")
        before: tuple[GroupMember, ...] = ()
        if kind == p4rt.Update.INSERT:
            if old is not None:
                raise P4RuntimeError(code_pb2.ALREADY_EXISTS, f"{profile.name} has a group {group} already")
            self._require_style(profile, one_shot=False)
            _check_max_size(profile, entry.max_size)
        else:
            before = native.group(group)
            if old is not None and entry.max_size not in (0, old.max_size):
                raise invalid(f"group {group}: max_size was {old.max_size} when it was inserted; it cannot be changed")
        max_size = entry.max_size if old is None else old.max_size
        after = self._group_members(profile, entry.members, max_size)
        more = _size(profile, after) - _size(profile, before)
        self._check_total(profile, more)
        if kind == p4rt.Update.INSERT:
            native.insert_group(group, after)
            journal.add(lambda: native.delete_group(group))
        else:
            native.modify_group(group, after)
            journal.add(lambda: native.modify_group(group, before))
        kept = p4rt.ActionProfileGroup()
        kept.CopyFrom(entry)
        kept.max_size = max_size
        self._keep(identity, kept)
        self._sizes[profile.id] += more
        journal.add(lambda: self._keep(identity, old))
        journal.add(lambda: self._sizes.subtract({profile.id: more}))

    def read_groups(self, query: p4rt.ActionProfileGroup) -> Iterator[p4rt.Entity]:
        """Return the groups that an ``ActionProfileGroup`` in a ReadRequest selects by its ids."""
        profiles = {profile.id for profile in self._selected(query.action_profile_id, query.group_id)}
        if query.group_id:
            one = self._groups.get((query.action_profile_id, query.group_id))
            found = [one] if one is not None else []
        else:
            found = [kept for (profile, _), kept in self._groups.items() if profile in profiles]
        return (p4rt.Entity(action_profile_group=kept) for kept in found)

    # --- table entries ---

    def choose(self, table: TableSchema, action: p4rt.TableAction) -> Member | Group:
        """Return the member or group for an entry of a table with an action profile.

        A one-shot set becomes a group; call :meth:`forget` if the entry is not made, or when it is removed.
        """
        assert table.profile is not None
        profile, kind = table.profile, action.WhichOneof("type")
        if kind is None or kind == "action":
            raise invalid(f"table {table.name} has an action profile: its entries have members, groups or action sets")
        if kind != "action_profile_action_set":
            self._require_style(profile, one_shot=False)
        if kind == "action_profile_member_id":
            _require_id(action.action_profile_member_id, "member")
            return Member(action.action_profile_member_id)
        if not profile.with_selector:
            raise invalid(f"action profile {profile.name} has no selector: entries of {table.name} have members only")
        if kind == "action_profile_group_id":
            _require_id(action.action_profile_group_id, "group")
            return Group(action.action_profile_group_id)
        return self._one_shot(profile, action.action_profile_action_set)

    def forget(self, table: TableSchema, chosen: Member | Group | None) -> None:
        """Handle that an entry does not point to the member or group any more; a one-shot set's group is deleted."""
        if not isinstance(chosen, Group) or chosen.id < _OWN_IDS:
            return
        assert table.profile is not None
        native, identity = self._native(table.profile), (table.profile.id, chosen.id)
        native.delete_group(chosen.id)
        members, size = self._own.pop(identity)
        for member in members:
            native.delete_member(member)
        del self._sets[identity]
        self._one_shots[table.profile.id] -= 1
        self._sizes[table.profile.id] -= size

    def encode(self, table: TableSchema, chosen: Member | Group, out: p4rt.TableAction) -> None:
        """Fill in the action of an entry, the inverse of :meth:`choose`."""
        if isinstance(chosen, Member):
            out.action_profile_member_id = chosen.id
        elif chosen.id < _OWN_IDS:
            out.action_profile_group_id = chosen.id
        else:
            assert table.profile is not None
            out.action_profile_action_set.CopyFrom(self._sets[table.profile.id, chosen.id])

    def _one_shot(self, profile: ProfileSchema, actions: p4rt.ActionProfileActionSet) -> Group:
        self._require_style(profile, one_shot=True)
        wanted = list(actions.action_profile_actions)
        calls = [self._action(profile, one.action, one.HasField("action")) for one in wanted]
        ports = [_watch_port(one) for one in wanted]
        weights = _weights(profile, [one.weight for one in wanted])
        _check_one_shot(profile, actions)
        size = len(wanted) if profile.by_members else sum(weights)
        if profile.max_group_size and size > profile.max_group_size:
            raise _exhausted(f"{profile.name}: a set of size {size}, above its maximum of {profile.max_group_size}")
        if sum(weights) > MAX_GROUP:
            raise _exhausted(f"{profile.name}: weights that make more than {MAX_GROUP}")
        members: list[GroupMember] = []
        native = self._native(profile)
        group = self._own_id()
        for weight, port in zip(weights, ports, strict=True):
            members += [GroupMember(self._own_id(), 1, port) for _ in range(weight)]
        self._check_total(profile, size)
        made: list[int] = []
        try:
            expanded = (call for call, weight in zip(calls, weights, strict=True) for _ in range(weight))
            for member, call in zip(members, expanded, strict=True):
                native.insert_member(member.id, *call)
                made.append(member.id)
            native.insert_group(group, members)
        except BaseException:
            for member_id in made:
                native.delete_member(member_id)
            raise
        self._own[profile.id, group] = made, size
        self._one_shots[profile.id] += 1
        kept = p4rt.ActionProfileActionSet()
        kept.CopyFrom(actions)
        self._sets[profile.id, group] = kept
        self._sizes[profile.id] += size
        return Group(group)

    def _own_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- checks ---

    def _native(self, profile: ProfileSchema) -> ActionProfile:
        return self._device.profiles[profile.name]

    def _selected(self, profile_id: int, object_id: int) -> list[ProfileSchema]:
        if profile_id:
            return [self._schema.profile(profile_id)]
        if object_id:
            raise invalid("a read of all action profiles (action_profile_id 0) takes no other filter")
        return list(self._schema.profiles.values())

    def _action(self, profile: ProfileSchema, action: p4rt.Action, given: bool) -> tuple[str, tuple[int, ...]]:
        if not given:
            raise invalid(f"{profile.name}: a member has no action")
        schema: ActionSchema | None = profile.actions_by_id.get(action.action_id)
        if schema is None:
            raise invalid(f"action profile {profile.name} has no action with id {action.action_id}")
        return schema.name, decode_params(schema, action)

    def _require_style(self, profile: ProfileSchema, *, one_shot: bool) -> None:
        """Check that a profile is used either with members and groups or with one-shot sets, not both."""
        own = self._one_shots[profile.id] > 0
        if one_shot and not own and len(self._native(profile)):
            raise invalid(f"{profile.name} has members already: give members or groups, or delete them all first")
        if not one_shot and own:
            raise invalid(f"entries of {profile.name} have one-shot action sets: give such sets, or delete them first")

    def _group_members(
        self, profile: ProfileSchema, wanted: Iterable[p4rt.ActionProfileGroup.Member], max_size: int
    ) -> list[GroupMember]:
        given = list(wanted)
        weights = _weights(profile, [m.weight for m in given])
        members = [GroupMember(m.member_id, weight, _watch_port(m)) for m, weight in zip(given, weights, strict=True)]
        size = len(members) if profile.by_members else sum(m.weight for m in members)
        most = max_size or profile.max_group_size or MAX_GROUP
        if size > most:
            raise _exhausted(f"{profile.name}: a group of size {size}, above its maximum of {most}")
        return members

    def _check_total(self, profile: ProfileSchema, more: int) -> None:
        """Check that the groups of a profile do not exceed its size together."""
        total = self._sizes[profile.id] + more
        if profile.size and total > profile.size:
            raise _exhausted(f"{profile.name}: its groups would be {total} together, above its size of {profile.size}")

    def _keep(self, identity: tuple[int, int], group: p4rt.ActionProfileGroup | None) -> None:
        if group is None:
            self._groups.pop(identity, None)
        else:
            self._groups[identity] = group


def _size(profile: ProfileSchema, members: Sequence[GroupMember]) -> int:
    return len(members) if profile.by_members else sum(m.weight for m in members)


def _weights(profile: ProfileSchema, weights: list[int]) -> list[int]:
    """Return the weights of members, after checks; 1 for each in a profile whose P4Info disallows weights."""
    if profile.weights_disallowed:
        if any(weights):
            raise invalid(f"{profile.name}: the P4Info disallows weights (weights_disallowed); leave them out")
        return [1] * len(weights)
    if any(weight < 1 for weight in weights):
        raise invalid(f"{profile.name}: a weight is not positive")
    most = profile.max_member_weight
    if profile.by_members and most and any(weight > most for weight in weights):
        raise invalid(f"{profile.name}: a weight is above the maximum of {most}")
    return weights


def _check_one_shot(profile: ProfileSchema, actions: p4rt.ActionProfileActionSet) -> None:
    """Check the fields of P4Runtime 1.5 that may differ from what the selector does."""
    mode, semantics = later_field(actions, "action_selection_mode"), later_field(actions, "size_semantics")
    if mode not in (None, 0, _HASH):
        raise unimplemented(f"{profile.name}: action_selection_mode {mode} is not supported; the selector is a hash")
    if semantics not in (None, 0, _SUM_OF_MEMBERS if profile.by_members else _SUM_OF_WEIGHTS):
        raise unimplemented(f"{profile.name}: size_semantics other than the selector's are not supported")


def _check_max_size(profile: ProfileSchema, max_size: int) -> None:
    """Check a group's maximum size; 0 (not given) means the static maximum."""
    most = profile.max_group_size
    if max_size < 0:
        raise invalid(f"{profile.name}: max_size is negative")
    if most and max_size > most:
        raise invalid(f"{profile.name}: max_size {max_size} is above {most}, the maximum in the P4Info")
    if max_size > MAX_GROUP:
        raise _exhausted(f"{profile.name}: max_size {max_size} is above {MAX_GROUP}, the largest group")


def _watch_port(member: p4rt.ActionProfileGroup.Member | p4rt.ActionProfileAction) -> int | None:
    """Return the port that a member depends on. Every port of v1model exists; a port that is not attached is down."""
    kind = member.WhichOneof("watch_kind")
    if kind is None or (kind == "watch_port" and not member.watch_port) or (kind == "watch" and not member.watch):
        return None
    port = member.watch if kind == "watch" else bytestring.decode(member.watch_port, 32, "watch_port")
    if not 0 <= port <= MAX_PORT:
        raise out_of_range(f"watch port {port} does not exist; ports are 0..{MAX_PORT}")
    return port


def _require_id(number: int, what: str) -> None:
    if number == 0:
        raise invalid(f"the {what} id is 0, which is not valid here")


def _exhausted(message: str) -> P4RuntimeError:
    return P4RuntimeError(code_pb2.RESOURCE_EXHAUSTED, message)
