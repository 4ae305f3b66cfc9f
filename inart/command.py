"""The command `inart`: one name for the command lines of all packages.

    inart plan --topology fattree:k=4 --job workers=8,ps=2
    inart serve ... --listen 0.0.0.0:9600 --credentials DIR/controller
    inart ps --controller HOST:PORT

A verb passes the rest of the line to the module that `python -m` can run as well, and imports nothing else, because a
training node has none of the packages that planning needs (the extra "control").
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from inart import __version__

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""


@dataclass(frozen=True)
class Verb:
    """A verb of the command.

    Attributes:
        module: the module whose main() is run.
        first: words that are put before the user's.
        order: whether the first of these words is a command of the module, with help of its own.
        extra: the extra of the distribution that the module needs; "" for none.
    """

    module: str
    help: str
    first: tuple[str, ...] = ()
    extra: str = ""
    order: bool = False


VERBS = {
    "plan": Verb(
        "controlplane.cli.plan.command", "plan a job on a topology, or compare strategies; no switch", extra="control"
    ),
    "deploy": Verb(
        "controlplane.cli.deploy", "put a plan on the switches, show or remove its entries", extra="control"
    ),
    "serve": Verb("controlplane.cli.serve", "the controller of a network; jobs come and go", extra="control"),
    "job": Verb("controlplane.cli.controller", "add, list, show, remove jobs", ("job",), order=True),
    "status": Verb("controlplane.cli.controller", "who has joined, what is missing", ("status",), order=True),
    "replan": Verb("controlplane.cli.controller", "change the plan under a running job", ("replan",), order=True),
    "log": Verb("controlplane.cli.controller", "who did what on the network, and when", ("log",), order=True),
    "drain": Verb("controlplane.cli.controller", "take a switch or link out of service", ("drain",), order=True),
    "undrain": Verb("controlplane.cli.controller", "put it back", ("undrain",), order=True),
    "topology": Verb(
        "controlplane.cli.controller", "read the topology again, with jobs running", ("topology",), order=True
    ),
    "certificates": Verb(
        "controlplane.cli.certificates", "a private authority and certificates, to try TLS with", extra="control"
    ),
    "simulate": Verb("controlplane.cli.simulate", "run a plan in the simulator", extra="control"),
    "emulate": Verb("topologies.__main__", "an emulated network of P4 switches (root)", extra="emulation"),
    "agent": Verb("worker_agent.__main__", "the agent of a worker node, for its trainers", ("serve",), order=True),
    "ps": Verb("ps_server.__main__", "a parameter server"),
    "run": Verb("worker_agent.launch.command", "run a training command with a job of its own in the network"),
    "slurm": Verb("worker_agent.launch.slurm", "what Slurm calls when a job begins and ends (prolog, epilog, task)"),
    "kubernetes": Verb("worker_agent.launch.kubernetes", "add and remove jobs as Kubernetes' PyTorchJobs ask for"),
    "mpi": Verb("worker_agent.clients.mpi", "run a rank of an MPI program, whose collectives go through the network"),
    "nccl": Verb("worker_agent.clients.nccl", "write a plugin by which NCCL's all-reduces go through the network"),
    "allreduce": Verb("worker_agent.__main__", "try the network without PyTorch", ("allreduce",), order=True),
    "site": Verb("overlay.sites.command", "train across data centres: coordinator, run, status", extra="control"),
    "overlay": Verb("overlay.__main__", "agents that add for each other: coordinator, agent", extra="control"),
    "doctor": Verb("controlplane.cli.doctor", "what is missing on this machine, and what installs it"),
}
ALIASES = {"compare": ("plan", "--compare")}
"""Words that stand for others, for scripts."""
SERVERS = {("agent",), ("ps",), ("serve",), ("site", "coordinator"), ("overlay", "coordinator"), ("overlay", "agent")}
"""The commands that run until SIGINT or SIGTERM, also where a script started them with `&`, so that SIGINT was ignored:
it ends them while modules are imported, too."""
OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors with which standard output cannot be written; those about a file have the file's name, too."""


def usage() -> str:
    """Return the text that `inart --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items()]
    return "\n".join(["usage: inart VERB ...", "", *lines, "", "inart VERB --help explains a verb."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return its exit status."""
    try:
        status = run(list(sys.argv[1:] if argv is None else argv))
        print(end="", flush=True)  # works also where standard output is closed (`>&-`)
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_ERRORS:
            raise  # It is about something else, of which the verb should have said what it was.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or what is left would fail again at exit
        if isinstance(error, BrokenPipeError):  # `| head` has read what it wanted
            return 0
        print(f"inart: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return status


def run(words: list[str]) -> int:
    """Run the verb that these words begin with; return its exit status."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"inart {__version__}")
        return 0
    words = [*ALIASES.get(words[0], words[:1]), *words[1:]]
    verb = VERBS.get(words[0])
    if verb is None:
        print(f"inart: no verb {words[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    if not SERVERS.isdisjoint((tuple(words[:1]), tuple(words[:2]))):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before, sys.argv[0] = sys.argv[0], "inart" if verb.order else f"inart {words[0]}"
    try:
        return int(importlib.import_module(verb.module).main([*verb.first, *words[1:]]) or 0)
    except ModuleNotFoundError as error:  # The error may also come from an import at first use.
        return _missing(words[0], verb, error)
    except KeyboardInterrupt:  # Ctrl-C may come while modules are imported, which takes long on a busy machine.
        return INTERRUPTED
    finally:
        sys.argv[0] = before


def _missing(name: str, verb: Verb, error: ModuleNotFoundError) -> int:
    print(f"inart {name}: {error}", file=sys.stderr)
    print(f"inart {name}: pip install 'inart[{verb.extra or 'all'}]' brings it", file=sys.stderr)
    return 1
