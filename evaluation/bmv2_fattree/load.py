"""Was the machine idle enough? CPU time from /proc/stat, and frames that the switches lost."""

from pathlib import Path

from evaluation.bmv2_fattree.results import Load
from topologies import Emulation


class LoadMonitor:
    """From construction to `stop`."""

    def __init__(self, emulation: Emulation) -> None:
        self._emulation = emulation
        self._drops = _drops(emulation)
        self._idle, self._total = cpu_times()

    def stop(self) -> Load:
        idle, total = cpu_times()
        share = (idle - self._idle) / max(total - self._total, 1)
        return Load(share, _drops(self._emulation) - self._drops)


def cpu_times(stat: str | None = None) -> tuple[int, int]:
    """(idle, total) ticks of all cores since the start.

    Idle is what was to be had: also the time of waiting for disks and of programs with a lower priority (nice), but
    not time stolen by the hypervisor.
    """
    fields = (stat if stat is not None else Path("/proc/stat").read_text()).splitlines()[0].split()
    _user, nice, _system, idle, waiting, *_rest = ticks = [int(field) for field in fields[1:9]]
    return nice + idle + waiting, sum(ticks)


def _drops(emulation: Emulation) -> int:
    return sum(sum(reasons.values()) for reasons in emulation.drops().values())
