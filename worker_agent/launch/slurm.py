"""Programs for Slurm to call at the begin and the end of a job, so that a job with the comment `inart` has one in the
network.

    sbatch --comment inart train.sh
    sbatch --comment inart:ps=2,model=100M,share,else=wait train.sh

inart slurm prolog     PrologSlurmctld: add the job for the nodes that Slurm has given it
inart slurm epilog     EpilogSlurmctld: take it off, however it has ended
inart slurm task       TaskProlog: tell the job's tasks of it, and the user what became of it
inart slurm sweep      take off what jobs have left that Slurm does not run any more (from time to time, by cron)

examples/slurm/ has the shell files that Slurm calls. After `inart:` come words as `inart job add` takes them, and
strategy=NAME, share, and what to do where the network cannot take the job: else=gloo (it runs over torch.distributed,
as without the comment; this is the default) or else=wait (it goes back into Slurm's queue, and is tried again). Exit
status: 0, or 1 where the job is to wait or could not be taken off.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from controlplane.common import command_line
from controlplane.common.rpc.channels import controller_address
from controlplane.common.rpc.client import ControllerError, fetch_status
from worker_agent.launch.adding import add, patiently, take_off
from worker_agent.launch.holder import remove
from worker_agent.launch.machines import MachinesError, expand, resolve
from worker_agent.launch.wishes import Refused, Wish, gets, parse_wish

WORD = "inart"
PREFIX = "slurm-"
"""The beginning of a job's name in the network, which the job's number in Slurm follows; `inart run` uses the same
names.
"""
SCONTROL_SECONDS = 30.0
AGENT = "INART_AGENT"
"""Environment variable with the socket of the node's agent, through which tasks train. Tasks belong to users, and have
no credentials: whoever has a node's can join as this node."""
Environment = Mapping[str, str]


def wished(comment: str) -> Wish | None:
    """Return the wishes in a job's comment; None if it does not ask for the network. Raise Refused for words that are
    not understood.
    """
    found = [word for word in comment.replace(";", " ").split() if word == WORD or word.startswith(f"{WORD}:")]
    if not found:
        return None
    return parse_wish(found[0].partition(":")[2], "the comment")


def number_of(environment: Environment) -> str:
    """Return the job's number. Raise ValueError where Slurm's environment has none."""
    number = environment.get("SLURM_JOB_ID", "")
    if not number.isdigit():
        raise ValueError("SLURM_JOB_ID is not set: Slurm calls this (slurm.conf, examples/slurm/)")
    return number


def prolog(controller: str, environment: Environment) -> int:
    """Add the job, and return the exit status: 1 where the job is to wait for the network."""
    number, wish = number_of(environment), None
    try:
        if (wish := wished(environment.get("SLURM_JOB_COMMENT", ""))) is None:
            return 0
        remark(number, admitted(controller, f"{PREFIX}{number}", wish, environment))
        return 0
    except (Refused, ControllerError, MachinesError) as error:
        if wish is not None and wish.waits:
            remark(number, f"waits for room in the network: {error}")
            return 1
        remark(number, f"not in the network, it runs over torch.distributed: {error}")
        return 0


def admitted(controller: str, name: str, wish: Wish, environment: Environment) -> str:
    """Add a job on its nodes, for its account as the tenant, and return in words what it gets.

    Raise Refused where it is refused, ControllerError where no controller answers, MachinesError where its nodes cannot
    be found out.
    """
    hosts = [(node, resolve(node)) for node in expand(environment.get("SLURM_JOB_NODELIST", ""))]
    request = wish.request(name, environment.get("SLURM_JOB_ACCOUNT", "").replace("(null)", ""), hosts)
    patiently(lambda: take_off(controller, name))  # Slurm may have begun its job again, or called this program again.
    reply = add(controller, name, request)
    return f"{_taken(name)} {gets(reply)}; parameter servers {', '.join(reply.parameter_servers)}"


def _fewer_nodes(environment: Environment) -> str:
    """Return in words that a step runs on fewer nodes than its Slurm job, all of whose nodes the network's job has."""
    step, whole = environment.get("SLURM_STEP_NUM_NODES", ""), environment.get("SLURM_JOB_NUM_NODES", "")
    if not (step.isdigit() and whole.isdigit() and int(step) < int(whole)):
        return ""
    return (
        f"this step has {step} nodes and the Slurm job {whole}: the network carries only steps on all nodes of the job "
        f"(srun -N {whole})"
    )


def epilog(controller: str, environment: Environment) -> int:
    """Remove the job, if it is there; return the exit status, 1 where it could not be removed."""
    return remove(controller, f"{PREFIX}{number_of(environment)}")


def task(controller: str, environment: Environment) -> int:
    """Print the lines for Slurm's TaskProlog: `export NAME=value` for the task, `print words` for the user.

    A task uses the node's agent ($INART_AGENT) or, at a controller that asks for no credentials, one of its own.
    """
    number = number_of(environment)
    name = f"{PREFIX}{number}"
    print(f"export INART_SLURM_JOB={number}")
    speaks = environment.get("SLURM_PROCID", "0") == "0"  # One task of a step is enough.
    remarked = _remarked(number)
    there = not remarked or remarked.startswith(_taken(name))  # All tasks follow the prolog's remark.
    agent = environment.get(AGENT)
    if there and (fewer := _fewer_nodes(environment)):
        there, remarked = False, fewer
    if there and not agent:
        try:
            there = any(job.name == name for job in fetch_status(controller).jobs)
            remarked = f"there is no job {name} in the network any more"
        except ControllerError as error:
            if speaks:
                print(f"print inart: {_line(error)}; the job goes into the network if it answers in time")
    if not there:
        if speaks:
            print(f"print inart: {_line(remarked)}")
        return 0
    print(f"export {AGENT}={agent}" if agent else f"export INART_CONTROLLER={controller}")
    print(f"export INART_JOB={name}")
    if speaks:
        print(f"print inart: job {name} is in the network (inart job show {name})")
    return 0


def sweep(controller: str, _: Environment) -> int:
    """Remove the jobs that Slurm does not know any more; return the exit status, 1 where that could not be done.

    The network's jobs are read before Slurm's: a job that starts meanwhile is then missing in the first list, and not
    in the second one. A job that is back in Slurm's queue is left alone, since it may start at any moment.
    """
    try:
        there = [job.name for job in fetch_status(controller).jobs]
    except ControllerError as error:
        print(f"inart slurm: {error}", file=sys.stderr)
        return 1
    try:
        listed = subprocess.run(
            ["squeue", "--noheader", "--format=%A"],
            capture_output=True, text=True, check=True, timeout=SCONTROL_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        print(f"inart slurm: squeue does not answer, so nothing is taken off: {error}", file=sys.stderr)
        return 1
    known = {f"{PREFIX}{number}" for number in listed.stdout.split()}
    left = [name for name in there if name.removeprefix(PREFIX).isdigit() and name not in known]
    return max([remove(controller, name) for name in left if name.startswith(PREFIX)], default=0)


def remark(number: str, words: str) -> None:
    """Write what became of the job into its AdminComment in Slurm (`scontrol show job`), and to standard error."""
    text = f"inart: {_line(words)}"
    print(text, file=sys.stderr, flush=True)
    try:
        subprocess.run(
            ["scontrol", "update", f"JobId={number}", f"AdminComment={text}"],
            capture_output=True, check=True, timeout=SCONTROL_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        print(f"inart slurm: no comment to job {number}: {error}", file=sys.stderr, flush=True)


def _remarked(number: str) -> str:
    """Return the job's AdminComment, which `remark` has written; empty if it cannot be read."""
    try:
        done = subprocess.run(
            ["scontrol", "--oneliner", "show", "job", number],
            capture_output=True, text=True, check=True, timeout=SCONTROL_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    words = done.stdout.partition("AdminComment=inart: ")[2]
    return words.partition(" Comment=")[0].strip()


def _taken(name: str) -> str:
    """Return the beginning of the remark on a job that the network has taken."""
    return f"job {name}:"


def _line(words: object) -> str:
    return " ".join(str(words).split())


DOES: Mapping[str, Callable[[str, Environment], int]] = {
    "prolog": prolog, "epilog": epilog, "task": task, "sweep": sweep,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line.make("slurm", __doc__)
    parser.add_argument("what", choices=tuple(DOES), help="when Slurm calls it")
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    arguments: argparse.Namespace = parser.parse_args(argv)
    try:
        asks = arguments.what != "task" or not os.environ.get(AGENT)
        return DOES[arguments.what](controller_address(arguments.controller) if asks else "", os.environ)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
