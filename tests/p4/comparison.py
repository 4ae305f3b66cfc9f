"""Compares a target with the reference model, frame by frame."""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.switch import Switch
from tests.p4.rig import PORTS, Arrival
from tests.p4.targets import Frames, Target


def readable(frames: Frames) -> list[str]:
    """Return frames in a form and an order that compare well and print well."""
    return sorted(f"port {port}: {frame.hex(' ', -4)}" for port, frame in frames)


def compare(target: Target, reference: Switch, arrivals: Iterable[Arrival]) -> None:
    """Give every frame to both; raises AssertionError at the first one after which they differ."""
    for number, arrival in enumerate(arrivals):
        expected = readable(reference.process(arrival.port, arrival.frame))
        found = readable(target.process(arrival.port, arrival.frame))
        assert found == expected, f"frame {number} on port {arrival.port}: {arrival.frame.hex(' ', -4)}"


def compare_counters(target: Target, reference: Switch) -> None:
    """Check that verdict counters and counters per label and port equal the reference's since both were fresh."""
    verdicts = target.verdicts()
    assert verdicts == {verdict: reference.verdicts[verdict] for verdict in verdicts}
    labels = target.label_counters()
    assert labels == {key: (reference.label_packets[key], reference.label_bytes[key]) for key in labels}
    if (counted := target.other_bytes()) is not None:
        for found, expected in zip(counted, (reference.other_received, reference.other_sent), strict=True):
            assert {port: found[port] for port in PORTS} == {port: expected[port] for port in PORTS}
