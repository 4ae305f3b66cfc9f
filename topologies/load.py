"""Measures whether the machine was idle enough during a measurement, by CPU time (/proc/stat) and frames that switches
lost.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from topologies.emulation import Emulation

IDLE_NEEDED = 0.10  # part of the cores' time that must be idle for the network to count as the bottleneck


@dataclass(frozen=True)
class Load:
    """The machine's load during a measurement.

    Attributes:
        idle: the idle fraction of all cores' time, 0 to 1.
        drops: frames that switches lost, by reason.
    """

    idle: float
    drops: dict[str, int]

    @property
    def network_was_the_limit(self) -> bool:
        return self.idle >= IDLE_NEEDED


class LoadMonitor:
    """A measurement of the load from construction to `stop`."""

    def __init__(self, emulation: Emulation) -> None:
        self._emulation = emulation
        self._drops = _drops(emulation)
        self._idle, self._total = cpu_times()

    def stop(self) -> Load:
        idle, total = cpu_times()
        share = (idle - self._idle) / max(total - self._total, 1)
        drops = {reason: count - self._drops.get(reason, 0) for reason, count in _drops(self._emulation).items()}
        return Load(share, {reason: count for reason, count in drops.items() if count})


def process_seconds(pid: int | str) -> float:
    """Return the CPU seconds of a process: of all its threads, including those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_times(stat: str | None = None) -> tuple[int, int]:
    """Return (idle, total) ticks of all cores since boot.

    Idle counts all time that was available: also waiting for disks and programs with a lower priority (nice), but not
    time stolen by the hypervisor. `stat` is the content of /proc/stat (None: read it).
    """
    fields = (stat if stat is not None else Path("/proc/stat").read_text()).splitlines()[0].split()
    _user, nice, _system, idle, waiting, *_rest = ticks = [int(field) for field in fields[1:9]]
    return nice + idle + waiting, sum(ticks)


def _drops(emulation: Emulation) -> dict[str, int]:
    total: dict[str, int] = {}
    for reasons in emulation.drops().values():
        for reason, count in reasons.items():
            total[reason] = total.get(reason, 0) + count
    return total
