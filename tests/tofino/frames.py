"""Sends frames of every kind through Intel's model of the chip and through ours, one after the other.

    INART_TOFINO_MODEL=... python -m tests.tofino.frames --packets 100000 --seed 1
    INART_TOFINO2_MODEL=... python -m tests.tofino.frames --artifact p4src/artifacts/t2na-64

It prints the differences, and the verdicts of both. The tables are those of tests/p4/rig.py.
"""

from __future__ import annotations

import argparse
import ipaddress
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from controlplane.planner import entries as rules
from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.targets.bri.entries import Entry
from controlplane.targets.bri.ports import Panel, PortMap
from controlplane.targets.bri.program import Program
from p4src.artifacts import Artifact, find, load
from p4src.protocol import ETHERTYPE_IPV4, HEADER_OFFSET, Verdict
from tests.model.folded import FoldedSwitch
from tests.model.packet import ours as is_ours
from tests.model.switch import Aggregate, Bridge, Forward, Replicate, Switch
from tests.model.tofino import LOOPBACK, TofinoSwitch, tables_of
from tests.p4 import rig
from tests.p4.comparison import readable
from tests.p4.rig import BRIDGE, GROUPS, PORTS, ROUTES, SLOTS, Arrival, Traffic
from tests.tofino.chip import Chip, missing


def _below(flows: int) -> int:
    """Map the rig's flow bits to those that Tofino has: flows 40 and 63 become 29 and 30."""
    return flows & 0xFFFF | (flows >> 40 & 1) << 29 | (flows >> 63 & 1) << 30


LABELS = {
    key: replace(action, flow=_below(action.flow), everyone=_below(action.everyone))
    if isinstance(action, Aggregate)
    else action
    for key, action in rig.LABELS.items()
}
LOOP = 20
"""The loopback port."""
FIRST = {"tna": 0, "t2na": 8}
"""The device port of the rig's port 0; Tofino 2's front panel begins at 8."""
BATCH = 100


def ours(artifact: Artifact) -> TofinoSwitch:
    """Return our model with the rig's tables."""
    values, tables = artifact.manifest.values_per_packet, (dict(LABELS), dict(GROUPS), dict(ROUTES))
    if Program.load(artifact.program).chip.folded:
        return FoldedSwitch(values, SLOTS, *tables, bridge=BRIDGE, tables=tables_of(artifact.directory))
    return TofinoSwitch(values, SLOTS, *tables, bridge=BRIDGE)


def install(chip: Chip, artifact: Artifact, *, wired: bool = True) -> None:
    """Install the rig's tables on the chip, as the control plane makes entries of them.

    wired: its loopback ports loop.
    """
    first = FIRST[artifact.manifest.target]
    there = entries(artifact, ours(artifact), {port: first + port for port in PORTS}, first + LOOP)
    chip.install(there, wired=wired)


def entries(artifact: Artifact, tables: Switch, devices: Mapping[int, int], loop: int) -> list[Entry]:
    """Return the entries that the control plane makes of a switch's tables.

    ``devices``: device port by number; ``loop``: the loopback port.
    """
    labels = [rules.LabelEntry(port, label, _rule(action)) for (port, label), action in tables.labels.items()]
    groups = tuple(rules.MulticastGroup(group, tuple(ports)) for group, ports in tables.groups.items())
    routes = tuple(
        rules.Route(str(ipaddress.IPv4Address(address)), length, mac.hex(":"), port)
        for (address, length), (mac, port) in tables.routes.items()
    )
    panel = {port: FrontPanelPort(1 + index, 0, "100G") for index, port in enumerate(devices)}
    looping = FrontPanelPort(1 + len(panel), 0, "100G", loopback=True)
    named = {**{panel[port].name: device for port, device in devices.items()}, looping.name: loop}
    bridge = tuple(_bridging(entry, len(tables.bridge) - place) for place, entry in enumerate(tables.bridge))
    ruleset = rules.RuleSet("switch", tuple(labels), groups, routes, (looping,), bridge)
    return Program.load(artifact.program).entries(ruleset, PortMap(Panel(panel, (looping,)), named))


def _bridging(entry: Bridge, priority: int) -> rules.Bridge:
    address, mask = (number.to_bytes(6, "big").hex(":") for number in (entry.address & entry.mask, entry.mask))
    action = None if entry.action is None else _rule(entry.action)
    assert not isinstance(action, rules.Aggregate)
    return rules.Bridge(priority, entry.port, address, mask, action)


def _rule(action: Forward | Replicate | Aggregate) -> rules.Forward | rules.Replicate | rules.Aggregate:
    if isinstance(action, Forward):
        return rules.Forward(action.port)
    if isinstance(action, Replicate):
        return rules.Replicate(action.group)
    return rules.Aggregate(**asdict(action))


def differences(chip: Chip, model: TofinoSwitch, arrivals: Iterator[Arrival], number: int) -> Iterator[str]:
    """Yield a description of each difference for the next ``number`` frames."""
    first = FIRST[chip.target]
    while number > 0:
        batch = [next(arrivals) for _ in range(min(BATCH, number))]
        number -= len(batch)
        left = chip.process_all((first + arrival.port, arrival.frame) for arrival in batch)
        for arrival, found in zip(batch, left, strict=True):
            wanted = readable(model.process(arrival.port, arrival.frame))
            frames = readable([(port - first, frame) for port, frame in found])
            if frames != wanted:
                yield f"{arrival.frame.hex(' ', -4)} on port {arrival.port}: ours {wanted}, theirs {frames}"


def differences_on_the_way(
    chip: Chip, model: TofinoSwitch, arrivals: Iterator[Arrival], number: int, source: random.Random
) -> Iterator[str]:
    """Yield differences as :func:`differences` does, while recirculated frames are lost, doubled and delayed in the
    same way in both; they are compared, too.

    The chip's loopback ports must not be wired, and the model's must be ``delayed``.
    """
    first = FIRST[chip.target]
    under_way: list[tuple[int, bytes]] = []
    for _ in range(number):
        if under_way and source.random() < 0.6:
            late = source.random() < 0.3
            device, frame = under_way.pop(source.randrange(len(under_way)) if late else 0)
            port = LOOPBACK
        else:
            arrival = next(arrivals)
            device, port, frame = first + arrival.port, arrival.port, arrival.frame
        left = chip.process(device, frame)
        found = readable([(out - first if out - first in PORTS else LOOPBACK, sent) for out, sent in left])
        wanted = readable(model.process(port, frame))
        if found != wanted:
            yield f"{frame.hex(' ', -4)} on port {port}: ours {wanted}, theirs {found}"
        for out, sent in left:
            if out - first not in PORTS and source.random() > 0.05:
                under_way += [(out, sent)] * (2 if source.random() < 0.05 else 1)


def counted(chip: Chip) -> dict[Verdict, int]:
    """Return the chip's verdict counters."""
    return {verdict: chip.counter("verdict_counter", verdict)[0] for verdict in Verdict}


def expected(model: TofinoSwitch, target: str) -> dict[Verdict, int]:
    """Return what the chip's verdict counters should be. On Tofino 2 the number of the verdict *unknown* is action data
    of a default entry, which a driver writes: without a driver it is counted as 0, *forwarded*.
    """
    counts = {verdict: model.verdicts[verdict] for verdict in Verdict}
    if target == "t2na":
        counts[Verdict.FORWARDED] += counts[Verdict.UNKNOWN]
        counts[Verdict.UNKNOWN] = 0
    return counts


def endless(traffic: Traffic) -> Iterator[Arrival]:
    """Yield arrivals without frames of ours that are too short for a UDP header, and without IPv4 multicast that lacks
    a whole header. An Ethernet has no such frames, and the parser, which sees the frame check sequence behind them,
    takes that for ports.
    """
    while True:
        arrival = traffic.arrival()
        frame = arrival.frame
        to_group = frame[:1] and frame[0] & 1 and frame[12:14] == ETHERTYPE_IPV4.to_bytes(2, "big")
        if len(frame) >= HEADER_OFFSET or not (is_ours(frame) or to_group):
            yield arrival


def add_artifact(parser: argparse.ArgumentParser) -> None:
    """Add the option that `artifact_of` reads."""
    parser.add_argument("--artifact", type=Path, help="folder of a compiled program (default: that of tna)")


def artifact_of(options: argparse.Namespace) -> Artifact:
    """Return the program that was asked for; end the command with the reason where it cannot run here."""
    artifact = load(options.artifact) if options.artifact else find("tna")
    if reason := missing(artifact):
        raise SystemExit(reason)
    return artifact


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tofino.frames", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packets", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--harm", action="store_true", help="what goes round is lost, doubled and late")
    add_artifact(parser)
    options = parser.parse_args()
    artifact = artifact_of(options)
    model, wrong, done, began = ours(artifact), 0, 0, time.monotonic()
    arrivals = endless(Traffic(random.Random(options.seed), model.values_per_packet, 1000))
    source = random.Random(options.seed)
    model.delayed = options.harm
    with Chip(artifact) as chip:
        install(chip, artifact, wired=not options.harm)
        while done < options.packets:
            some = min(2000, options.packets - done)
            some_differ = (
                differences_on_the_way(chip, model, arrivals, some, source)
                if options.harm
                else differences(chip, model, arrivals, some)
            )
            for difference in some_differ:
                wrong += 1
                if wrong <= 20:
                    print(difference)
            done += some
            print(f"{done} frames, {wrong} differ, {time.monotonic() - began:.0f} s", flush=True)
        theirs, wanted = counted(chip), expected(model, chip.target)
    print(", ".join(f"{verdict.name.lower()} {number}" for verdict, number in theirs.items()))
    if theirs != wanted:
        print("ours: " + ", ".join(f"{verdict.name.lower()} {number}" for verdict, number in wanted.items()))
    return int(wrong > 0 or theirs != wanted)


if __name__ == "__main__":
    sys.exit(main())
