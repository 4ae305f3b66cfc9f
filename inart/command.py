"""The command `inart`: one name for the command lines of all packages.

    inart plan --topology fattree:k=4 --job workers=8,ps=2
    inart serve ... --listen 0.0.0.0:9600 --credentials DIR/controller
    inart ps --controller HOST:PORT

A verb passes the rest of the line to its module, and imports nothing else, because a training node has none of the
packages that planning needs (the extra "control").
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
        help: words for the list of verbs; "" where the list has only the name.
        first: words that are put before the user's.
        extra: the extra of the distribution that the module needs; "" for none.
    """

    module: str
    help: str = ""
    first: tuple[str, ...] = ()
    extra: str = ""


CONTROLLER = "controlplane.cli.controller"
VERBS = {
    "plan": Verb(
        "controlplane.cli.plan.command", "plan a job on a topology, or compare strategies; needs no switch",
        extra="control",
    ),
    "deploy": Verb(
        "controlplane.cli.deploy", "install a plan on switches, show its entries, or remove them", extra="control"
    ),
    "serve": Verb(
        "controlplane.cli.serve", "run the controller of a network, to which jobs are added", extra="control"
    ),
    "job": Verb(CONTROLLER, "add, list, show and remove jobs", ("job",)),
    "run": Verb("worker_agent.launch.command", "run a training command as a job of its own"),
    "agent": Verb("worker_agent.__main__", "run the agent of a worker node, for its trainers", ("serve",)),
    "ps": Verb("ps_server.__main__", "run a parameter server"),
    "allreduce": Verb("worker_agent.__main__", "try a job without PyTorch: add generated data", ("allreduce",)),
    "status": Verb(CONTROLLER, "show jobs, agents and switches, and what is missing or stuck", ("status",)),
    "log": Verb(CONTROLLER, "show the journal: who did what, when, and what changed", ("log",)),
    "doctor": Verb("controlplane.cli.doctor", "check this machine, its data interface, switches and controller"),
    "replan": Verb(CONTROLLER, "plan a running job again, for the present state of the network", ("replan",)),
    "drain": Verb(CONTROLLER, "take a switch or link out of service", ("drain",)),
    "undrain": Verb(CONTROLLER, "put it back into service", ("undrain",)),
    "topology": Verb(CONTROLLER, "reload the topology file, or import another project's", ("topology",)),
    "certificates": Verb(
        "controlplane.cli.certificates", "make the certificates or tokens that say who may do what", extra="control"
    ),
    "emulate": Verb(
        "topologies.__main__", "build a network of P4 switches on this machine (root)", extra="emulation"
    ),
}  # fmt: skip
PLUGINS = {
    "simulate": Verb("controlplane.cli.simulate", extra="control"),
    "slurm": Verb("worker_agent.launch.slurm"),
    "kubernetes": Verb("worker_agent.launch.kubernetes"),
    "mpi": Verb("worker_agent.clients.mpi"),
    "nccl": Verb("worker_agent.clients.nccl"),
    "site": Verb("overlay.sites.command", extra="control"),
    "overlay": Verb("overlay.__main__", extra="control"),
}
"""Verbs for other systems, which the list of verbs only names.

A table and not entry points of the distribution: loading those takes longer than all else that `inart --help` does, and
a verb would be unknown until the distribution is installed again.
"""
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
    more = f"also: {', '.join(PLUGINS)}"
    return "\n".join(["usage: inart VERB ...", "", *lines, "", more, "inart VERB --help explains a verb."])


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
    verb = VERBS.get(words[0]) or PLUGINS.get(words[0])
    if verb is None:
        print(f"inart: no verb {words[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    if not SERVERS.isdisjoint((tuple(words[:1]), tuple(words[:2]))):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return int(importlib.import_module(verb.module).main([*verb.first, *words[1:]]) or 0)
    except ModuleNotFoundError as error:  # The error may also come from an import at first use.
        return _missing(words[0], verb, error)
    except KeyboardInterrupt:  # Ctrl-C may come while modules are imported, which takes long on a busy machine.
        return INTERRUPTED


def _missing(name: str, verb: Verb, error: ModuleNotFoundError) -> int:
    print(f"inart {name}: {error}", file=sys.stderr)
    print(f"inart {name}: pip install 'inart[{verb.extra or 'all'}]' brings it", file=sys.stderr)
    return 1
