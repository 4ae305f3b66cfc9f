"""How much CPU time bmv2 needs for an aggregation packet.

    python -m tests.p4.measure [--values 256] [--artifact FOLDER] [--workers 4] [--packets 8000]

W workers' packets for one chunk after another go into one port; the sums leave by another. Printed are CPU
microseconds per packet: of the whole process, and of its busiest thread (ingress), whose inverse is the packet rate
that the switch can reach. CPU time is less disturbed than a rate by what else runs on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from p4src.artifacts import find, load
from tests.model.packet import Packet
from tests.model.switch import Aggregate, Switch
from tests.p4 import bmv2

IN_FLIGHT = 16
"""Packets that are sent before waiting for what they cause: bmv2 loses longer bursts, its capture buffer is small."""


def thread_ticks(pid: int) -> dict[int, int]:
    """CPU time of each thread of a process, in clock ticks."""
    ticks = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks[int(task.name)] = int(fields[11]) + int(fields[12])
    return ticks


def child_of(pid: int) -> int:
    """The switch itself: ``ip netns exec`` becomes it, so it is the process, or its only child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.p4.measure")
    parser.add_argument("--values", type=int, default=256)
    parser.add_argument(
        "--artifact", type=Path, help="folder of a compiled program (default: the one in the repository)"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--packets", type=int, default=8000)
    options = parser.parse_args()
    reason = bmv2.missing()
    if reason:
        print(f"tests.p4.measure: {reason}", file=sys.stderr)
        return 1
    artifact = load(options.artifact) if options.artifact else find(values=options.values)
    values = artifact.manifest.values_per_packet
    expected = (1 << options.workers) - 1
    labels = {(1, 10 + w): Aggregate(0, 1023, 1 << w, expected, 100, 2) for w in range(options.workers)}
    target = bmv2.Bmv2Target(artifact, Switch(values, artifact.manifest.slots, labels=dict(labels)), (1, 2))
    try:
        assert target.process_ is not None
        pid = child_of(target.process_.pid)
        batch = max(1, IN_FLIGHT // options.workers)
        chunks = options.packets // options.workers // batch * batch
        before = thread_ticks(pid)
        received = 0
        for start in range(0, chunks, batch):
            for sequence in range(start, start + batch):
                for worker in range(options.workers):
                    packet = Packet(10 + worker, 1, sequence, 0, (sequence + worker,) * values)
                    target.sockets[1].send(packet.encode())
            received += len(target.settle(1))
        after = thread_ticks(pid)
    finally:
        target.close()
    packets = chunks * options.workers + chunks // batch
    tick = 1e6 / os.sysconf("SC_CLK_TCK") / packets
    used = [(after[thread] - before.get(thread, 0)) * tick for thread in after]
    if received != chunks:
        print(
            f"{chunks - received} of {chunks} sums were lost: the numbers are of a switch that drops", file=sys.stderr
        )
    total, ingress = sum(used), max(used)
    print(f"{values} values: {total:.0f} us CPU a packet, ingress {ingress:.0f} us = {1e6 / ingress:.0f} packets/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
