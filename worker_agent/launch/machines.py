"""Finds out on which machines a command is started: from `--nodes`, or from what Slurm says in the environment."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

MOST_MACHINES = 100_000
RANGES = re.compile(r"([^\[\]]*)\[([0-9,-]+)\](.*)")
"""Slurm's short form of several names: text before the brackets, numbers and ranges in them, and text after them."""


class MachinesError(ValueError):
    """The machines on which the command runs cannot be found out; the message says what to give."""


@dataclass(frozen=True)
class Machines:
    """The machines on which a command is started.

    Attributes:
        names: the names of all machines, the same on each.
        position: this machine's place among them; -1: it is not known.
        job: a name for the job that is the same on all machines.
    """

    names: tuple[str, ...]
    position: int
    job: str

    @property
    def first(self) -> bool:
        """Whether this machine adds the job and removes it; the others wait for it."""
        return self.position == 0


def find_machines(given: str | None, environment: Mapping[str, str], node: str, own: Collection[str]) -> Machines:
    """Return the machines that the command is started on. Raise MachinesError where they cannot be found out.

    Args:
        given: the value of --nodes.
        environment: the environment variables, among which Slurm's are looked for.
        node: this machine's node of the topology, or "".
        own: this machine's addresses.
    """
    if given is not None:
        names = expand(given)
        position = _position(names, node, own)
        if position < 0:
            who = f"node {node}" if node else socket.gethostname()
            raise MachinesError(f"this machine ({who}) is none of --nodes {given}")
        return Machines(tuple(names), position, f"run-{names[0]}")
    if listed := environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST"):
        names = expand(listed)
        if set(names) != set(expand(whole := environment.get("SLURM_JOB_NODELIST") or listed)):
            raise MachinesError(
                f"this step runs on {listed}, and the Slurm job has {whole}: start the step on all nodes of the job "
                "(srun -N), or give --nodes"
            )
        job = environment.get("SLURM_JOB_ID", "")
        number = environment.get("SLURM_NODEID", "")
        position = int(number) if number.isdigit() else _position(names, node, own)
        if not 0 <= position < len(names):
            raise MachinesError(f"Slurm's {listed} does not have this machine: start it with srun, or give --nodes")
        return Machines(tuple(names), position, f"slurm-{job}" if job else f"run-{names[0]}")
    raise MachinesError(
        "which machines does the command run on? Give --nodes A,B,C on each of them (names of the topology's servers, "
        "or host names); under Slurm it is found out. torchrun's --nnodes says how many there are, and not which"
    )


def expand(text: str) -> list[str]:
    """Return the names in a list such as "a,b" or Slurm's "gpu[01-03,07],login1". Raise MachinesError for others."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        names += _expand_one(part.strip())
        if len(names) > MOST_MACHINES:
            raise MachinesError(f"more than {MOST_MACHINES} machines")
    if not names or not all(names) or len(set(names)) < len(names):
        raise MachinesError(f"machines are names with commas between them, each once, got {text!r}")
    return names


def _expand_one(part: str) -> list[str]:
    found = RANGES.fullmatch(part)
    if found is None:
        if "[" in part or "]" in part:
            raise MachinesError(f"not a list of machines: {part!r}")
        return [part]
    before, ranges, after = found.groups()
    rest = _expand_one(after)
    numbers: list[str] = []
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise MachinesError(f"not a range of machines: {one!r} in {part!r}")
        many = range(int(first), int(last if dash else first) + 1)
        if not 0 < len(many) <= MOST_MACHINES:
            raise MachinesError(f"not a range of machines: {one!r} in {part!r}")
        numbers += [f"{number:0{len(first)}}" for number in many]
    if len(numbers) * len(rest) > MOST_MACHINES:
        raise MachinesError(f"more than {MOST_MACHINES} machines")
    return [f"{before}{number}{tail}" for number in numbers for tail in rest]


def _position(names: Sequence[str], node: str, own: Collection[str]) -> int:
    """Return this machine's place among `names`, which are topology nodes, host names or addresses; -1 where it is none
    of them.
    """
    full = socket.gethostname()
    for known in (node, full, full.partition(".")[0]):
        if known and known in names:
            return names.index(known)
    abroad = {address for address in own if not address.startswith("127.")}
    return next((index for index, name in enumerate(names) if abroad.intersection(resolve(name))), -1)


def resolve(name: str) -> list[str]:
    """Return the IPv4 addresses of a host's name; none where the name is not known."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(address[0]) for *_, address in found})
