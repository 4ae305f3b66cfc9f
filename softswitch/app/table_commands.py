"""The commands for tables and action profiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from softswitch.app import literals
from softswitch.app.command_context import Answer, Context, command, without_arrow
from softswitch.bmv2json.model import Match
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import CONST_PRIORITY
from softswitch.dataplane.profiles import ActionProfile, Group, GroupMember, Member
from softswitch.dataplane.program import TableInfo
from softswitch.errors import AlreadyExists, InvalidValue, NotFound

RULE, STARS = "=" * 10, "*" * 10

Key = tuple[tuple[Match, ...], int]


# ---------------------------------------------------------------------------------------------------------- the program


@command("show_tables")
def _show_tables(context: Context, _: list[str]) -> Answer:
    tables = [context.program.tables[name] for name in sorted(context.program.tables)]
    return Answer([_table_line(table) for table in tables], [table.name for table in tables])


@command("show_actions")
def _show_actions(context: Context, _: list[str]) -> Answer:
    names = sorted(context.program.actions)
    return Answer([_action_line(context, name) for name in names], names)


@command("table_show_actions", "<table>")
def _table_show_actions(context: Context, words: list[str]) -> Answer:
    names = sorted(set(context.table(words[0]).actions))
    return Answer([_action_line(context, name) for name in names], names)


@command("table_info", "<table>")
def _table_info(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    names = sorted(set(table.actions))
    lines = [_table_line(table), "*" * 80, *(_action_line(context, name) for name in names)]
    return Answer(lines, {"table": table.name, "actions": names})


def _table_line(table: TableInfo) -> str:
    keys = ",\t".join(f"{key.name}({key.match_kind}, {key.width})" for key in table.keys)
    profile = f"implementation={table.profile}, " if table.profile else ""
    return f"{table.name:30} [{profile}mk={keys}]"


def _action_line(context: Context, name: str) -> str:
    params = ",\t".join(f"{param}({width})" for param, width in context.program.actions[name].params)
    return f"{name:30} [{params}]"


# -------------------------------------------------------------------------------------------------------------- entries


@command("table_add", "<table> <action> <match>... => <parameter>... [priority]")
def _table_add(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    key, parameters = _key_and_rest(table, words[2:])
    action, values = context.action(words[1], f"table {table.name}", table.actions, parameters)
    return _insert(context, table, key, action, values)


@command("table_modify", "<table> <action> <handle> [=>] <parameter>...")
def _table_modify(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    action, values = context.action(words[1], f"table {table.name}", table.actions, without_arrow(words[3:]))
    handle, entry = context.entry(table, words[2])
    context.device.modify(table.name, entry.match, action, values, entry.priority)
    return Answer([f"Modifying entry {handle} of table {table.name}"], {"table": table.name, "handle": handle})


@command("table_delete", "<table> <handle>")
def _table_delete(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    handle, entry = context.entry(table, words[1])
    context.device.delete(table.name, entry.match, entry.priority)
    context.handles(table).remove(handle)
    return Answer([f"Deleting entry {handle} from {table.name}"], {"table": table.name, "handle": handle})


@command("table_clear", "<table>")
def _table_clear(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    handles = context.handles(table)
    entries = handles.refresh()
    for handle, entry in entries.items():
        context.device.delete(table.name, entry.match, entry.priority)
        handles.remove(handle)
    return Answer([], {"table": table.name, "deleted": len(entries)})


@command("table_num_entries", "<table>")
def _table_num_entries(context: Context, words: list[str]) -> Answer:
    number = len(context.device.entries(context.table(words[0]).name))
    return Answer([str(number)], number)


@command("table_set_timeout", "<table> <handle> <milliseconds>")
def _table_set_timeout(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    timeout = literals.number(words[2], "timeout")
    handle, entry = context.entry(table, words[1])
    context.device.set_idle_timeout(table.name, entry.match, timeout * 1_000_000, entry.priority)
    return Answer([f"Setting a {timeout} ms timeout for entry {handle}"], {"table": table.name, "handle": handle})


@command("table_set_default", "<table> <action> [=>] <parameter>...")
def _table_set_default(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    action, values = context.action(words[1], f"table {table.name}", table.actions, without_arrow(words[2:]))
    context.device.set_default(table.name, action, values)
    return Answer([f"Setting default action of {table.name}"], _call(action, values))


@command("table_reset_default", "<table>")
def _table_reset_default(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    context.device.set_default(table.name, None)
    return Answer([], {"table": table.name})


@command("table_dump", "<table>")
def _table_dump(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    entries = sorted(context.handles(table).refresh().items())
    lines, found = [RULE, "TABLE ENTRIES"], []
    for handle, entry in entries:
        lines += [STARS, *_entry_lines(context, table, handle, entry)]
        found.append(_entry_value(table, handle, entry))
    value: dict[str, object] = {"table": table.name, "entries": found}
    if table.profile is not None:
        lines += _profile_lines(context, context.device.profiles[table.profile])
    else:
        default = context.device.get_default(table.name)
        value["default"] = _call(*default)
        lines += [RULE, "Dumping default entry", _action_entry(context, *default)]
    return Answer([*lines, RULE], value)


@command("table_dump_entry", "<table> <handle>")
def _table_dump_entry(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    handle, entry = context.entry(table, words[1])
    return Answer(_entry_lines(context, table, handle, entry), _entry_value(table, handle, entry))


@command("table_dump_entry_from_key", "<table> <match>... [priority]")
def _table_dump_entry_from_key(context: Context, words: list[str]) -> Answer:
    table = context.table(words[0])
    match, priority = _key(table, words[1:])
    native = context.device.get(table.name, match, priority).handle
    entries = context.handles(table).refresh()
    handle = next(handle for handle, entry in entries.items() if entry.handle == native)
    return Answer(_entry_lines(context, table, handle, entries[handle]), _entry_value(table, handle, entries[handle]))


def _insert(
    context: Context, table: TableInfo, key: Key, action: str | Member | Group, values: Sequence[int] = ()
) -> Answer:
    match, priority = key
    handles = context.handles(table)  # Entries that were there before get lower handles.
    native = context.device.insert(table.name, match, action, values, priority)
    handle = handles.add(Entry(native, match, priority, "", (), is_const=False))
    return Answer([f"Entry has been added with handle {handle}"], {"table": table.name, "handle": handle})


def _key(table: TableInfo, words: Sequence[str]) -> Key:
    """Return match and priority; the priority is the last word if the table has priorities."""
    rest, priority = list(words), 0
    if table.needs_priority:
        if len(rest) != len(table.keys) + 1:
            raise InvalidValue(f"table {table.name} needs {len(table.keys)} match fields and a priority at the end")
        priority = _priority(rest.pop())
    if len(rest) != len(table.keys):
        raise InvalidValue(f"table {table.name} needs {len(table.keys)} match fields, got {len(rest)}")
    return tuple(literals.match(text, key) for text, key in zip(rest, table.keys, strict=True)), priority


def _key_and_rest(table: TableInfo, words: Sequence[str]) -> tuple[Key, list[str]]:
    """Return match and priority, and the words behind the arrow; the priority is the last word of the line."""
    line = list(words)
    last = [line.pop()] if table.needs_priority and line else []
    at = line.index(literals.ARROW) if literals.ARROW in line else len(line)
    return _key(table, [*line[:at], *last]), line[at + 1 :]


def _priority(text: str) -> int:
    """Return the priority for the data plane, where the largest wins: with bmv2's commands the lowest wins."""
    given = literals.number(text, "priority")
    if given > CONST_PRIORITY:
        raise InvalidValue(f"priority {given} is above {CONST_PRIORITY}")
    return CONST_PRIORITY - given


def _call(action: str, values: Sequence[int]) -> dict[str, object]:
    return {"action": action, "parameters": list(values)}


def _entry_value(table: TableInfo, handle: int, entry: Entry) -> dict[str, object]:
    fields = [literals.show(one, key.width) for one, key in zip(entry.match, table.keys, strict=True)]
    value: dict[str, object] = {"handle": handle, "match": fields}
    if table.needs_priority:
        value["priority"] = CONST_PRIORITY - entry.priority
    if entry.chosen is None:
        return value | _call(entry.action, entry.params)
    return value | {"group" if isinstance(entry.chosen, Group) else "member": entry.chosen.id}


def _entry_lines(context: Context, table: TableInfo, handle: int, entry: Entry) -> list[str]:
    lines = [f"Dumping entry {handle:#x}", "Match key:"]
    width = max([20, *(len(key.name) for key in table.keys)])
    for one, key in zip(entry.match, table.keys, strict=True):
        lines.append(f"* {key.name:{width}}: {one.kind.upper():10}{literals.show(one, key.width)}")
    if table.needs_priority:
        lines.append(f"Priority: {CONST_PRIORITY - entry.priority}")
    if entry.chosen is None:
        lines.append(_action_entry(context, entry.action, entry.params))
    else:
        lines.append(f"Index: {'group' if isinstance(entry.chosen, Group) else 'member'}({entry.chosen.id})")
    if table.has_idle_timeout:
        since, timeout = entry.since_hit_ns // 1_000_000, entry.idle_timeout_ns // 1_000_000
        lines.append(f"Life: {since}ms since hit, timeout is {timeout}ms")
    return lines


def _action_entry(context: Context, name: str, values: Sequence[int]) -> str:
    return f"Action entry: {literals.show_action(context.program.actions[name], values)}"


# ------------------------------------------------------------------------------------------------------ action profiles


@command("act_prof_create_member", "<profile> <action> <parameter>...")
@command("table_indirect_create_member", "<table> <action> <parameter>...")
def _create_member(context: Context, words: list[str]) -> Answer:
    profile = context.profile(words[0])
    call = context.action(words[1], profile.info.name, profile.info.actions, without_arrow(words[2:]))
    handle = next(number for number in count() if number not in profile)
    profile.insert_member(handle, *call)
    return Answer([f"Member has been created with handle {handle}"], {"profile": profile.info.name, "member": handle})


@command("act_prof_modify_member", "<profile> <action> <member> [=>] <parameter>...")
@command("table_indirect_modify_member", "<table> <action> <member> [=>] <parameter>...")
def _modify_member(context: Context, words: list[str]) -> Answer:
    profile = context.profile(words[0])
    call = context.action(words[1], profile.info.name, profile.info.actions, without_arrow(words[3:]))
    profile.modify_member(literals.number(words[2], "member handle"), *call)
    return Answer([])


@command("act_prof_delete_member", "<profile> <member>")
@command("table_indirect_delete_member", "<table> <member>")
def _delete_member(context: Context, words: list[str]) -> Answer:
    context.profile(words[0]).delete_member(literals.number(words[1], "member handle"))
    return Answer([])


@command("act_prof_create_group", "<profile>")
@command("table_indirect_create_group", "<table>")
def _create_group(context: Context, words: list[str]) -> Answer:
    profile = context.profile(words[0])
    groups = set(profile.groups())
    handle = next(number for number in count() if number not in groups)
    profile.insert_group(handle, ())
    return Answer([f"Group has been created with handle {handle}"], {"profile": profile.info.name, "group": handle})


@command("act_prof_delete_group", "<profile> <group>")
@command("table_indirect_delete_group", "<table> <group>")
def _delete_group(context: Context, words: list[str]) -> Answer:
    context.profile(words[0]).delete_group(literals.number(words[1], "group handle"))
    return Answer([])


@command("act_prof_add_member_to_group", "<profile> <member> <group>")
@command("table_indirect_add_member_to_group", "<table> <member> <group>")
def _add_member_to_group(context: Context, words: list[str]) -> Answer:
    profile, member, group = _member_and_group(context, words)
    members = profile.group(group)
    if any(one.id == member for one in members):
        raise AlreadyExists(f"member {member} of {profile.info.name} belongs to group {group} already")
    profile.modify_group(group, [*members, GroupMember(member)])
    return Answer([])


@command("act_prof_remove_member_from_group", "<profile> <member> <group>")
@command("table_indirect_remove_member_from_group", "<table> <member> <group>")
def _remove_member_from_group(context: Context, words: list[str]) -> Answer:
    profile, member, group = _member_and_group(context, words)
    members = profile.group(group)
    rest = [one for one in members if one.id != member]
    if len(rest) == len(members):
        raise NotFound(f"member {member} of {profile.info.name} does not belong to group {group}")
    profile.modify_group(group, rest)
    return Answer([])


@command("act_prof_dump", "<profile>")
def _dump_profile(context: Context, words: list[str]) -> Answer:
    profile = context.profile(words[0])
    members = {str(member): _call(*profile.member(member)) for member in profile.members()}
    groups = {str(group): [one.id for one in profile.group(group)] for group in profile.groups()}
    value = {"profile": profile.info.name, "members": members, "groups": groups}
    return Answer(_profile_lines(context, profile), value)


@command("act_prof_dump_member", "<profile> <member>")
@command("table_dump_member", "<table> <member>")
def _dump_member(context: Context, words: list[str]) -> Answer:
    profile, member = context.profile(words[0]), literals.number(words[1], "member handle")
    return Answer(_member_lines(context, profile, member), _call(*profile.member(member)))


@command("act_prof_dump_group", "<profile> <group>")
@command("table_dump_group", "<table> <group>")
def _dump_group(context: Context, words: list[str]) -> Answer:
    profile, group = context.profile(words[0]), literals.number(words[1], "group handle")
    return Answer(_group_lines(profile, group), [one.id for one in profile.group(group)])


@command("table_indirect_add", "<table> <match>... => <member> [priority]")
def _indirect_add(context: Context, words: list[str]) -> Answer:
    return _insert_chosen(context, words, Member)


@command("table_indirect_add_with_group", "<table> <match>... => <group> [priority]")
def _indirect_add_with_group(context: Context, words: list[str]) -> Answer:
    return _insert_chosen(context, words, Group)


@command("table_indirect_delete", "<table> <handle>")
def _indirect_delete(context: Context, words: list[str]) -> Answer:
    return _table_delete(context, words)


def _insert_chosen(context: Context, words: Sequence[str], kind: type[Member] | type[Group]) -> Answer:
    table = context.table(words[0])
    key, rest = _key_and_rest(table, words[1:])
    if len(rest) != 1:
        raise InvalidValue(f"table {table.name}: give one handle of a {kind.__name__.lower()} after =>")
    return _insert(context, table, key, kind(literals.number(rest[0], "handle")))


def _member_and_group(context: Context, words: Sequence[str]) -> tuple[ActionProfile, int, int]:
    profile = context.profile(words[0])
    return profile, literals.number(words[1], "member handle"), literals.number(words[2], "group handle")


def _profile_lines(context: Context, profile: ActionProfile) -> list[str]:
    lines = [RULE, "MEMBERS"]
    for member in profile.members():
        lines += [STARS, *_member_lines(context, profile, member)]
    if profile.info.with_selector:
        lines += [RULE, "GROUPS"]
        for group in profile.groups():
            lines += [STARS, *_group_lines(profile, group)]
    return lines


def _member_lines(context: Context, profile: ActionProfile, member: int) -> list[str]:
    return [f"Dumping member {member}", _action_entry(context, *profile.member(member))]


def _group_lines(profile: ActionProfile, group: int) -> list[str]:
    members = ", ".join(str(one.id) for one in profile.group(group))
    return [f"Dumping group {group}", f"Members: [{members}]"]
