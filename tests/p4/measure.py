"""Measures how much CPU time a switch needs for an aggregation packet.

    python -m tests.p4.measure [--switch bmv2|softswitch] [--values 256] [--artifact FOLDER] [--workers 4] [--packets N]

W workers' packets for one chunk after another go into one port; the sums leave by another. Other load on the machine
disturbs CPU time less than a rate.

For bmv2 it prints CPU microseconds per packet of the whole process and of its busiest thread (ingress), whose inverse
is the packet rate that the switch can reach. For softswitch it is the CPU time of a call that runs one packet through
the pipeline, without ports and queues; a call from Python costs about as much as a packet that is only forwarded, which
is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from p4src.artifacts import Artifact, find, load
from softswitch.tests.support.switches import missing_with_cables
from tests.model.packet import Packet
from tests.model.switch import Aggregate, Forward, Replicate, Switch
from tests.p4 import bmv2
from tests.p4.targets import SoftswitchTarget

IN_FLIGHT = 16
"""Packets that are sent before waiting for their results: bmv2 loses longer bursts, because its capture buffer is
small.
"""
FORWARD_LABEL = 50


def thread_ticks(pid: int) -> dict[int, int]:
    """Return the CPU time of each thread of a process, in clock ticks."""
    ticks = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks[int(task.name)] = int(fields[11]) + int(fields[12])
    return ticks


def child_of(pid: int) -> int:
    """Return the switch's process id: ``ip netns exec`` becomes it, so it is this process, or its only child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def configuration(artifact: Artifact, workers: int) -> Switch:
    """Return the tables: all workers on port 1, sums to port 2."""
    labels: dict[tuple[int, int], Forward | Replicate | Aggregate] = {(1, FORWARD_LABEL): Forward(2)}
    for worker in range(workers):
        labels[1, 10 + worker] = Aggregate(0, 1023, 1 << worker, (1 << workers) - 1, 100, 100, 2)
    return Switch(artifact.manifest.values_per_packet, artifact.manifest.slots, labels=labels)


def frames_of(artifact: Artifact, workers: int, sequence: int) -> list[bytes]:
    """Return what the workers send for one chunk."""
    values = (sequence,) * artifact.manifest.values_per_packet
    return [Packet(10 + worker, 1, sequence, 0, values).encode() for worker in range(workers)]


def measure_bmv2(artifact: Artifact, workers: int, packets: int) -> str:
    """Measure bmv2; returns one line."""
    target = bmv2.Bmv2Target(artifact, configuration(artifact, workers), (1, 2))
    try:
        assert target.switch.process is not None
        pid = child_of(target.switch.process.pid)
        batch = max(1, IN_FLIGHT // workers)
        chunks = packets // workers // batch * batch
        before = thread_ticks(pid)
        received = 0
        for start in range(0, chunks, batch):
            for sequence in range(start, start + batch):
                for frame in frames_of(artifact, workers, sequence):
                    target.sockets[1].send(frame)
            received += len(target.settle(1))
        after = thread_ticks(pid)
    finally:
        target.close()
    if received != chunks:
        raise RuntimeError(f"{chunks - received} of {chunks} sums were lost: send fewer at once (IN_FLIGHT)")
    tick = 1e6 / os.sysconf("SC_CLK_TCK") / (chunks * workers + chunks // batch)
    used = [(after[thread] - before.get(thread, 0)) * tick for thread in after]
    total, ingress = sum(used), max(used)
    return f"{total:.0f} us CPU a packet, ingress {ingress:.0f} us = {1e6 / ingress:.0f} packets/s"


def measure_softswitch(artifact: Artifact, workers: int, packets: int) -> str:
    """Measure softswitch; returns one line."""
    target = SoftswitchTarget(artifact, configuration(artifact, workers))
    values = (0,) * artifact.manifest.values_per_packet
    try:
        chunks = packets // workers
        aggregated = [frame for chunk in range(chunks) for frame in frames_of(artifact, workers, chunk)]
        forwarded = [Packet(FORWARD_LABEL, 1, 0, 0, values).encode()] * len(aggregated)
        times = []
        for frames in (aggregated, forwarded):
            process: Callable[[int, bytes], object] = target.process
            begin = time.thread_time()
            for frame in frames:
                process(1, frame)
            times.append((time.thread_time() - begin) / len(frames) * 1e6)
    finally:
        target.close()
    mbps = 8 * len(aggregated[0]) / times[0]
    return (
        f"{times[0]:.1f} us CPU a call for aggregation, {times[1]:.1f} us for forwarding; a core adds {mbps:.0f} "
        "Mbit/s (aggregation_mbps of a host that adds)"
    )


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.p4.measure")
    parser.add_argument("--switch", choices=("bmv2", "softswitch"), default="bmv2")
    parser.add_argument("--values", type=int, default=256)
    parser.add_argument("--artifact", type=Path, help="folder of a compiled program (default: the repository's)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--packets", type=int, default=8000)
    options = parser.parse_args()
    reason = missing_with_cables("bmv2")
    if options.switch == "bmv2" and reason:
        print(f"tests.p4.measure: {reason}", file=sys.stderr)
        return 1
    artifact = load(options.artifact) if options.artifact else find(values=options.values)
    measure = measure_bmv2 if options.switch == "bmv2" else measure_softswitch
    print(f"{artifact.manifest.values_per_packet} values: {measure(artifact, options.workers, options.packets)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
