"""The commands for registers, counters, meters, value sets, custom checks, multicast and mirroring."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.app import literals
from softswitch.app.command_context import Answer, Context, command, resolve
from softswitch.bmv2json.model import Match
from softswitch.dataplane.crc import Crc
from softswitch.dataplane.meters import MeterConfig
from softswitch.errors import AlreadyExists, InvalidValue, NotFound

PER_SECOND = 1_000_000  # bmv2's commands give the rates of meters per microsecond


# ------------------------------------------------------------------------------------------------------------ registers


@command("register_read", "<register> [index]")
def _register_read(context: Context, words: list[str]) -> Answer:
    name = resolve("register", words[0], context.program.registers)
    if len(words) == 1:
        values = context.device.register_read_all(name)
        return Answer([f"{words[0]}= {', '.join(map(str, values))}"], values)
    index = literals.number(words[1], "index")
    value = context.device.register_read(name, index)
    return Answer([f"{words[0]}[{index}]= {value}"], value)


@command("register_write", "<register> <index> <value>")
def _register_write(context: Context, words: list[str]) -> Answer:
    name = resolve("register", words[0], context.program.registers)
    context.device.register_write(name, literals.number(words[1], "index"), literals.number(words[2], "value"))
    return Answer([])


@command("register_reset", "<register>")
def _register_reset(context: Context, words: list[str]) -> Answer:
    name = resolve("register", words[0], context.program.registers)
    for index in range(context.program.registers[name].size):
        context.device.register_write(name, index, 0)
    return Answer([])


# ------------------------------------------------------------------------------------------------------------- counters


@command("counter_read", "<counter> <index>")
def _counter_read(context: Context, words: list[str]) -> Answer:
    name = resolve("counter", words[0], context.program.counters)
    index = literals.number(words[1], "index")
    owner = context.program.counters[name].table
    lines = []
    if owner is None:
        packets, bytes_ = context.device.counter_read(name, index)
    else:
        lines.append(f"this is the direct counter for table {owner}")
        _, entry = context.entry(context.table(owner), words[1])
        packets, bytes_ = context.device.direct_counter_read(owner, entry.match, entry.priority)
    lines.append(f"{words[0]}[{index}]= ({bytes_} bytes, {packets} packets)")
    return Answer(lines, {"packets": packets, "bytes": bytes_})


@command("counter_write", "<counter> <index> <packets> <bytes>")
def _counter_write(context: Context, words: list[str]) -> Answer:
    name = resolve("counter", words[0], context.program.counters)
    index = literals.number(words[1], "index")
    packets, bytes_ = literals.number(words[2], "packets"), literals.number(words[3], "bytes")
    owner = context.program.counters[name].table
    if owner is None:
        context.device.counter_write(name, index, packets, bytes_)
    else:
        _, entry = context.entry(context.table(owner), words[1])
        context.device.direct_counter_write(owner, entry.match, packets, bytes_, entry.priority)
    return Answer([f"{words[0]}[{index}] has been updated"])


@command("counter_reset", "<counter>")
def _counter_reset(context: Context, words: list[str]) -> Answer:
    name = resolve("counter", words[0], context.program.counters)
    counter = context.program.counters[name]
    if counter.table is None:
        for index in range(counter.size):
            context.device.counter_write(name, index, 0, 0)
    else:
        for entry in context.device.entries(counter.table):
            context.device.direct_counter_write(counter.table, entry.match, 0, 0, entry.priority)
    return Answer([])


# --------------------------------------------------------------------------------------------------------------- meters


@command("meter_set_rates", "<meter> <index> <rate:burst> <rate:burst>")
def _meter_set_rates(context: Context, words: list[str]) -> Answer:
    name = resolve("meter", words[0], context.program.meters)
    config = _rates(words[2:])
    owner = context.program.meters[name].table
    if owner is None:
        context.device.meter_write(name, config, literals.number(words[1], "index"), 1)
    else:
        _, entry = context.entry(context.table(owner), words[1])
        context.device.direct_meter_write(owner, entry.match, config, entry.priority)
    return Answer([])


@command("meter_array_set_rates", "<meter> <rate:burst> <rate:burst>")
def _meter_array_set_rates(context: Context, words: list[str]) -> Answer:
    name = resolve("meter", words[0], context.program.meters)
    config = _rates(words[1:])
    owner = context.program.meters[name].table
    if owner is None:
        context.device.meter_write(name, config)
    else:
        for entry in context.device.entries(owner):
            context.device.direct_meter_write(owner, entry.match, config, entry.priority)
    return Answer([])


@command("meter_get_rates", "<meter> <index>")
def _meter_get_rates(context: Context, words: list[str]) -> Answer:
    name = resolve("meter", words[0], context.program.meters)
    owner = context.program.meters[name].table
    if owner is None:
        (state,) = context.device.meter_read(name, literals.number(words[1], "index"), 1)
    else:
        _, entry = context.entry(context.table(owner), words[1])
        state = context.device.direct_meter_read(owner, entry.match, entry.priority)
    config = state.config
    rates = [] if config is None else [(config.cir, config.cburst), (config.pir, config.pburst)]
    lines = [f"{i}: info rate = {rate / PER_SECOND}, burst size = {burst}" for i, (rate, burst) in enumerate(rates)]
    return Answer(lines or ["no rates are set: every packet is green"], [list(one) for one in rates])


def _rates(texts: Sequence[str]) -> MeterConfig:
    """Return a configuration from two ``rate:burst``: the committed and the peak one, per microsecond."""
    found: list[tuple[int, int]] = []
    for text in texts:
        rate, _, burst = text.partition(":")
        try:
            found.append((round(float(rate) * PER_SECOND), int(burst)))
        except (ValueError, OverflowError):
            raise InvalidValue(f"{text!r} is not a rate; write RATE:BURST, the rate per microsecond") from None
    (cir, cburst), (pir, pburst) = found
    if pir < cir:
        raise InvalidValue("the second rate is below the first; give the committed rate first, then the peak rate")
    return MeterConfig(cir, cburst, pir, pburst)


# ----------------------------------------------------------------------------------------------------------- value sets


@command("show_pvs")
def _show_pvs(context: Context, _: list[str]) -> Answer:
    found = {name: one.bits for name, one in context.program.value_sets.items()}
    return Answer([f"{name:30} [{bits}]" for name, bits in sorted(found.items())], sorted(found))


@command("pvs_add", "<value_set> <value>")
def _pvs_add(context: Context, words: list[str]) -> Answer:
    name, members, member = _value(context, words)
    if member in members:
        raise AlreadyExists(f"value set {name} has {words[1]} already")
    context.device.value_set_write(name, [*members, member])
    return Answer([])


@command("pvs_remove", "<value_set> <value>")
def _pvs_remove(context: Context, words: list[str]) -> Answer:
    name, members, member = _value(context, words)
    if member not in members:
        raise NotFound(f"value set {name} has no {words[1]}")
    context.device.value_set_write(name, [other for other in members if other != member])
    return Answer([])


@command("pvs_get", "<value_set>")
def _pvs_get(context: Context, words: list[str]) -> Answer:
    name = resolve("value set", words[0], context.program.value_sets)
    widths = context.program.value_sets[name].widths
    lines = [
        " ".join(literals.show(one, width) for one, width in zip(member, widths, strict=True))
        for member in context.device.value_set_read(name)
    ]
    return Answer(lines, lines)


@command("pvs_clear", "<value_set>")
def _pvs_clear(context: Context, words: list[str]) -> Answer:
    context.device.value_set_write(resolve("value set", words[0], context.program.value_sets), ())
    return Answer([])


def _value(context: Context, words: Sequence[str]) -> tuple[str, tuple[tuple[Match, ...], ...], tuple[Match, ...]]:
    """Return the name of a value set, its members, and the member in the words: one number for all its fields."""
    name = resolve("value set", words[0], context.program.value_sets)
    widths = context.program.value_sets[name].widths
    rest = literals.value(words[1], sum(widths), f"value set {name}")
    fields = []
    for width in reversed(widths):
        fields.append(Match("exact", rest & (1 << width) - 1))
        rest >>= width
    return name, context.device.value_set_read(name), tuple(reversed(fields))


# -------------------------------------------------------------------------------------------------------- custom checks


@command("set_crc16_parameters", "<calculation> <polynomial> <initial> <final_xor> <reflect_data> <reflect_remainder>")
@command("set_crc32_parameters", "<calculation> <polynomial> <initial> <final_xor> <reflect_data> <reflect_remainder>")
def _set_crc(context: Context, words: list[str]) -> Answer:
    polynomial, initial, final_xor = (literals.number(text, "parameter") for text in words[1:4])
    reflect_data, reflect_remainder = (_bool(text) for text in words[4:])
    context.device.set_crc(words[0], Crc(polynomial, initial, final_xor, reflect_data, reflect_remainder))
    return Answer([])


def _bool(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return bool(literals.number(text, "parameter"))


# ---------------------------------------------------------------------------------------------- multicast and mirroring


@command("mc_mgrp_create", "<group>")
def _group_create(context: Context, words: list[str]) -> Answer:
    group = literals.number(words[0], "group")
    context.multicast.create_group(group)
    return Answer([f"Creating multicast group {group}"])


@command("mc_mgrp_destroy", "<group>")
def _group_destroy(context: Context, words: list[str]) -> Answer:
    group = literals.number(words[0], "group")
    context.multicast.destroy_group(group)
    return Answer([f"Destroying multicast group {group}"])


@command("mc_node_create", "<rid> <port>...")
def _node_create(context: Context, words: list[str]) -> Answer:
    handle = context.multicast.create_node(literals.number(words[0], "rid"), _ports(words[1:]))
    return Answer([f"node was created with handle {handle}"], {"node": handle})


@command("mc_node_update", "<node> <port>...")
def _node_update(context: Context, words: list[str]) -> Answer:
    context.multicast.update_node(literals.number(words[0], "node"), _ports(words[1:]))
    return Answer([])


@command("mc_node_destroy", "<node>")
def _node_destroy(context: Context, words: list[str]) -> Answer:
    context.multicast.destroy_node(literals.number(words[0], "node"))
    return Answer([f"Destroying node {words[0]}"])


@command("mc_node_associate", "<group> <node>")
def _node_associate(context: Context, words: list[str]) -> Answer:
    group, node = (literals.number(text, "handle") for text in words)
    context.multicast.associate(group, node)
    return Answer([f"Associating node {node} to multicast group {group}"])


@command("mc_node_dissociate", "<group> <node>")
def _node_dissociate(context: Context, words: list[str]) -> Answer:
    group, node = (literals.number(text, "handle") for text in words)
    context.multicast.dissociate(group, node)
    return Answer([f"Dissociating node {node} from multicast group {group}"])


@command("mc_dump")
def _mc_dump(context: Context, _: list[str]) -> Answer:
    multicast = context.multicast
    lines = ["=" * 10, "MC ENTRIES"]
    for group, nodes in sorted(multicast.groups.items()):
        lines += ["*" * 10, f"mgrp({group})"]
        for handle in nodes:
            node = multicast.nodes[handle]
            lines.append(f"  -> (L1h={handle}, rid={node.rid}) -> (ports=[{', '.join(map(str, node.ports))}], lags=[])")
    return Answer([*lines, "=" * 10], {str(group): nodes for group, nodes in multicast.groups.items()})


@command("mirroring_add", "<session> <port>")
def _mirroring_add(context: Context, words: list[str]) -> Answer:
    context.multicast.mirror(literals.number(words[0], "session"), "port", literals.number(words[1], "port"))
    return Answer([])


@command("mirroring_add_mc", "<session> <group>")
def _mirroring_add_mc(context: Context, words: list[str]) -> Answer:
    context.multicast.mirror(literals.number(words[0], "session"), "group", literals.number(words[1], "group"))
    return Answer([])


@command("mirroring_delete", "<session>")
def _mirroring_delete(context: Context, words: list[str]) -> Answer:
    context.multicast.unmirror(literals.number(words[0], "session"))
    return Answer([])


@command("mirroring_get", "<session>")
def _mirroring_get(context: Context, words: list[str]) -> Answer:
    kind, number = context.multicast.session(literals.number(words[0], "session"))
    return Answer([f"session {words[0]}: {kind} {number}"], {kind: number})


def _ports(texts: Sequence[str]) -> list[int]:
    if "|" in texts:
        if texts[-1] != "|":
            raise InvalidValue("link aggregation groups (after |) are not supported; list their ports instead")
        texts = texts[:-1]
    return [literals.number(text, "port") for text in texts]
