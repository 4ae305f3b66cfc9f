"""Reports what is installed, what is missing, which command installs it, and what this user and kernel allow.

inart doctor [--json] [--interface NAME] [--controller HOST:PORT [--credentials DIR]]
    [--switches FILE [--tofino [2]]]

Ends with 0 when everything that is required is there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane.common import command_line
from controlplane.common.agentconfig import interfaces_in

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements.txt"
SETUP = "make setup"
SOFTSWITCH = "pip install ./softswitch (in a clone of the repository)"
PROBE_SECONDS = 60
NETWORK_SECONDS = 5.0


@dataclass(frozen=True)
class Check:
    """A finding of the doctor.

    Attributes:
        required: Whether the doctor fails without it.
        fix: A command or advice; empty where nothing is wrong.
    """

    group: str
    name: str
    ok: bool
    required: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Program:
    """A command on PATH that is needed, its purpose, and how to install it."""

    name: str
    purpose: str
    fix: str
    required: bool = True


PROGRAMS = (
    Program("ip", "namespaces and links", "apt-get install iproute2"),
    Program("tc", "rate limits", "apt-get install iproute2"),
    Program("mnexec", "Mininet's hosts", "apt-get install mininet"),
    Program("ifconfig", "Mininet's hosts", "apt-get install net-tools"),
    Program("ping", "tests of the emulated network", "apt-get install iputils-ping"),
    Program("cc", "the engines and softswitch are compiled on this machine", "apt-get install gcc libc6-dev"),
    Program(
        "etcd",
        "two controllers on one machine: their tests, evaluation.operate",
        "make setup, or apt-get install --no-install-recommends etcd-server",
        required=False,
    ),
    Program("tcpdump", "captures", "apt-get install tcpdump", required=False),
    Program("iperf3", "background traffic", "apt-get install iperf3", required=False),
    Program("protoc", "changing common/rpc/inart.proto", "apt-get install protobuf-compiler", required=False),
    Program(
        "p4c-bm2-ss",
        "changing the P4 programs (compiled ones are in p4src/artifacts)",
        "https://github.com/p4lang/p4c#installing-packaged-versions-of-p4c",
        required=False,
    ),
    Program(
        "simple_switch_grpc",
        "the reference switch (without it softswitch runs)",
        "https://github.com/p4lang/behavioral-model#dependencies",
        required=False,
    ),
)

ABILITY_FIXES = {
    "network namespaces": "run as root",
    "veth pairs": "a kernel with CONFIG_VETH; run as root",
    "raw sockets (AF_PACKET)": "a kernel with CONFIG_PACKET; run as root",
    "super-frames over UDP": "Linux 5.0 or newer; until then agents send and receive packet by packet",
    "rate limits (tbf)": "a kernel with CONFIG_NET_SCH_TBF (modprobe sch_tbf)",
    "rate limits (htb)": "a kernel with CONFIG_NET_SCH_HTB (modprobe sch_htb)",
    "netem": "not needed: softswitch injects delay and loss itself",
    "Mininet's mnexec": "apt-get install mininet",
}
OPTIONAL_ABILITIES = {"netem", "rate limits (htb)", "super-frames over UDP"}


def check_packages(requirements: Path = REQUIREMENTS) -> Iterable[Check]:
    """Check the Python packages of requirements.txt and their versions.

    Where InArt was installed with pip there is no such file; the distribution's own requirements are checked instead.
    """
    if not requirements.exists():
        yield from check_distribution()
        return
    wrong, right = [], 0
    for line in requirements.read_text().splitlines():
        match = re.match(r"([A-Za-z0-9_.-]+)==([^\s;#]+)", line)
        if not match:
            continue
        name, wanted = match.groups()
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(Check("python", name, False, True, f"missing (wanted {wanted})", SETUP))
            continue
        if found.partition("+")[0] == wanted:
            right += 1
        else:
            wrong.append(Check("python", name, True, False, f"{found}, tested with {wanted}", SETUP))
    version = ".".join(map(str, sys.version_info[:3]))
    recent = sys.version_info >= (3, 11)
    yield Check("python", "Python", recent, True, version, "" if recent else "3.11 or newer: make setup PYTHON=...")
    yield Check("python", "packages", True, True, f"{right} as in requirements.txt")
    yield from wrong


def check_distribution() -> Iterable[Check]:
    """Check that the requirements of the installed distribution are there; those of its extras may be missing."""
    for line in importlib.metadata.requires("inart") or []:
        match = re.match(r"([A-Za-z0-9_.-]+)[^;]*(?:;.*extra == ['\"](\w+)['\"])?", line)
        if match is None or match[1] == "inart":
            continue
        name, extra = match.groups()
        try:
            found, fix = importlib.metadata.version(name), ""
        except importlib.metadata.PackageNotFoundError:
            found = f"missing (inart[{extra}] brings it)" if extra else "missing"
            fix = f"pip install 'inart[{extra}]'" if extra else f"pip install {name}"
        yield Check("python", name, not fix, not extra, found, fix)


def check_softswitch() -> Check:
    """Check that the emulated switch, a distribution of its own, is installed."""
    there = importlib.util.find_spec("softswitch") is not None
    detail = "there" if there else "missing: emulated networks, where there is no simple_switch_grpc"
    return Check("python", "softswitch", there, False, detail, "" if there else SOFTSWITCH)


def check_programs() -> Iterable[Check]:
    """Check that the commands are on PATH."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    for program in PROGRAMS:
        found = shutil.which(program.name, path=path)
        detail = found or f"missing: {program.purpose}"
        yield Check("programs", program.name, found is not None, program.required, detail, "" if found else program.fix)


def check_compiler() -> Check:
    """Check that the compiler builds a C11 program with threads and the kernel's headers."""
    source = (
        "#include <linux/if_packet.h>\n#include <pthread.h>\n#include <stdatomic.h>\nint main(void) { return 0; }\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "check.c")
        file.write_text(source)
        try:
            command = [
                "cc",
                "-std=c11",
                "-O2",
                "-pthread",
                "-shared",
                "-fPIC",
                "-o",
                str(file.with_suffix(".so")),
                str(file),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
            problem = done.stderr.strip()[:300] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    fix = "apt-get install gcc libc6-dev linux-libc-dev" if problem else ""
    return Check("abilities", "compile C11", not problem, True, problem or "works", fix)


def check_abilities() -> Iterable[Check]:
    """Try namespaces, veth pairs, raw sockets and rate limits in a throwaway namespace."""
    problems: dict[str, str]
    try:
        environment = os.environ | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        done = subprocess.run(
            [sys.executable, "-m", "controlplane.common.probe"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=True,
            env=environment,
            cwd=REQUIREMENTS.parent,
        )
        problems = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        problems = dict.fromkeys(ABILITY_FIXES, f"could not be tried: {error}")
    for name, problem in problems.items():
        required = name not in OPTIONAL_ABILITIES
        yield Check(
            "abilities", name, not problem, required, problem or "works", ABILITY_FIXES[name] if problem else ""
        )
    yield Check(
        "abilities",
        "root",
        os.geteuid() == 0,
        True,
        f"user {os.geteuid()}",
        "" if os.geteuid() == 0 else "the emulation needs root (sudo); agents do not",
    )


def check_tofino() -> Iterable[Check]:
    """Check the packages that only Tofino switches need: P4 Studio's BRI client, and p4c's Tofino back end."""
    from controlplane.targets.bri.sde import VARIABLE, SdeMissing, client_folder, load_client
    from p4src.tofino_toolchain import BUILD_FOLDER, BuildError, Toolchain

    try:
        load_client()
        sde = Check("tofino", "P4 Studio", True, False, f"${VARIABLE}: its BRI client works ({client_folder()})")
    except SdeMissing as error:
        advice = "only deploy --tofino needs it (--dry-run does not): docs/tofino.md"
        sde = Check("tofino", "P4 Studio", False, False, str(error).splitlines()[0], advice)
    yield sde
    try:
        yield Check("tofino", "p4c", True, False, Toolchain.find().version())
    except BuildError as error:
        advice = f"only make p4-tofino needs it: p4c built with -DENABLE_TOFINO=ON, {BUILD_FOLDER} set to its folder"
        yield Check("tofino", "p4c", False, False, str(error).split(". ")[0], advice)


def with_control(group: str, checks: Callable[[], Iterable[Check]], required: bool = False) -> Iterable[Check]:
    """Run checks that import packages of the extra `control`; where it is missing, yield one check that says so."""
    try:
        yield from checks()
    except ModuleNotFoundError as error:
        fix = "pip install 'inart[control]'; a node that only trains does not need it"
        yield Check(group, "inart[control]", False, required, f"not checked: {error}", fix)


def check_interface(interface: str | None) -> Iterable[Check]:
    """Check the kernel's features that agents need, and their data interface if one is given."""
    from controlplane.common import data_interface, other_users

    findings = (data_interface.receive_limit(), other_users.finding())
    for finding in findings:
        yield Check("agents' I/O", **asdict(finding))
    names = interfaces_in(interface) if interface else []
    for name in names:
        for finding in data_interface.check(name):
            of = f"{finding.name} of {name}" if len(names) > 1 else finding.name
            yield Check("agents' I/O", **{**asdict(finding), "name": of})


def check_machine() -> Iterable[Check]:
    """Check the machine's cores, disk, limits, GPU and name."""
    cores = len(os.sched_getaffinity(0))
    yield Check(
        "machine", "CPU cores", cores >= 2, False, str(cores), "" if cores >= 2 else "2 or more: timings suffer"
    )
    free = shutil.disk_usage(Path.home() if Path.home().exists() else "/").free / 1e9
    yield Check("machine", "disk", free > 1, True, f"{free:.0f} GB free", "" if free > 1 else "free 1 GB")
    yield Check("machine", "GPU", True, False, _gpu())
    yield check_host_name()


def check_host_name() -> Check:
    """Check that the machine's name leads to an address that the ranks of other machines reach."""
    from controlplane.common.host_name import FIX, loopback_problem

    problem = loopback_problem()
    return Check("machine", "host name", not problem, False, problem or "usable for gloo", FIX if problem else "")


def _gpu() -> str:
    try:
        import torch
    except ImportError:
        return "unknown (torch is missing)"
    if not torch.cuda.is_available():
        return "none (gradients on the CPU work as well)"
    return f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"


def check_controller(address: str, folder: Path | None = None) -> Iterable[Check]:
    """Check that the controller answers, and through it the agents; `folder` has the credentials of the caller (None:
    $INART_CREDENTIALS)."""
    from controlplane.common.rpc.client import ControllerError, fetch_status
    from controlplane.common.rpc.tls import credentials

    try:
        tls = credentials(folder)
    except (OSError, ValueError) as error:
        yield Check("controller", address, False, True, str(error), "inart certificates makes them: docs/deploy.md")
        return
    try:
        status = fetch_status(address, tls, timeout=NETWORK_SECONDS)
    except ControllerError as error:
        yield Check("controller", address, False, True, str(error), "inart serve")
        return
    only = f"job {status.job}, {status.state}, epoch {status.epoch}"
    yield Check("controller", address, True, True, only if status.job else f"{len(status.jobs)} jobs")
    if len(status.jobs) > 1:  # the status has the agents of an only job
        for job in status.jobs:
            detail = f"{job.joined} of {job.agents} agents have joined"
            fix = f"start the agents of {', '.join(job.missing)}" if job.missing else ""
            yield Check("jobs", job.name, not job.missing, True, detail, fix)
    for agent in status.agents:
        verb = "ps" if agent.role == "parameter_server" else "agent"
        detail = f"{agent.role.replace('_', ' ')}, joined from {agent.peer}" if agent.joined else "has not joined"
        fix = "" if agent.joined else f"on {agent.node}: inart {verb} ... --controller {address}"
        yield Check("agents", agent.node, agent.joined, True, detail, fix)
    for switch in status.switches:
        fix = "" if switch.state == "connected" else switch.problem
        yield Check("switches", switch.name, switch.state == "connected", True, f"{switch.address} {switch.state}", fix)


def check_switches(file: Path, tofino: str | None = None) -> Iterable[Check]:
    """Check each switch of a switches file: a P4Runtime server must answer and have the device, a BRI server our
    program."""
    from controlplane.cli.options import GENERATIONS
    from controlplane.targets.base import SwitchAddress, TargetError
    from controlplane.targets.bri.program import Program
    from controlplane.targets.bri.sde import SdeMissing, load_client
    from controlplane.targets.bri.target import ask as ask_bri
    from controlplane.targets.fabric import everywhere
    from controlplane.targets.p4runtime.session import ask as ask_p4runtime
    from controlplane.targets.registry import target as target_named
    from controlplane.targets.switches_file import SwitchesFileError, load_switches
    from p4src.artifacts import find

    try:
        switches = list(load_switches(file).values())
        client = load_client() if tofino else None
    except SwitchesFileError as error:
        yield Check("switches", str(file), False, True, str(error), "docs/deploy.md describes the file")
        return
    except SdeMissing as error:
        yield Check("switches", str(file), False, True, str(error).splitlines()[0], "docs/tofino.md")
        return

    def ask(switch: SwitchAddress) -> str:
        if client is None or tofino is None:
            return str(ask_p4runtime(switch, NETWORK_SECONDS))
        program = Program.load(find(target_named(GENERATIONS[tofino]).architecture).program)
        return ask_bri(client, program, switch, NETWORK_SECONDS)

    def one(switch: SwitchAddress) -> Check:
        try:
            detail = ask(switch)
        except TargetError as error:
            return Check("switches", switch.name, False, True, str(error), f"start the switch at {switch.address}")
        return Check("switches", switch.name, True, True, f"{switch.address}: {detail}")

    yield from everywhere(switches, one).values()


def show(checks: Iterable[Check]) -> str:
    """Return the findings as text; the missing ones come at the end."""
    lines: list[str] = []
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            lines.append(f"{group}:")
        mark = "ok " if check.ok else "NO " if check.required else "-  "
        lines.append(f"  {mark} {check.name}: {check.detail}" + (f"\n        -> {check.fix}" if check.fix else ""))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line.make("doctor", __doc__)
    command_line.add_json(parser)
    parser.add_argument("--interface", metavar="NAME[,NAME]", help="also check these data interfaces of an agent")
    parser.add_argument("--controller", metavar="HOST:PORT", help="also check this controller and its agents")
    parser.add_argument(
        "--credentials",
        type=Path,
        metavar="DIR",
        help="with --controller: your credentials (default: $INART_CREDENTIALS)",
    )
    parser.add_argument("--switches", type=Path, metavar="FILE", help="also check the switches of this file")
    parser.add_argument(
        "--tofino", nargs="?", const="1", choices=("1", "2"), help="with --switches: they are Tofino switches (BRI)"
    )
    arguments = parser.parse_args(argv)
    checks = [
        *check_packages(),
        check_softswitch(),
        *check_programs(),
        check_compiler(),
        *check_abilities(),
        *check_machine(),
        *check_interface(arguments.interface),
        *with_control("tofino", check_tofino),
    ]
    if arguments.controller is not None:
        checks += check_controller(arguments.controller, arguments.credentials)
    if arguments.switches is not None:
        checks += with_control("switches", lambda: check_switches(arguments.switches, arguments.tofino), required=True)
    failed = [check for check in checks if check.required and not check.ok]
    if arguments.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(show(checks))
        print("everything needed is there" if not failed else f"missing: {', '.join(check.name for check in failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
