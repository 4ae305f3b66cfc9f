"""p4runtime-shell on a switch of a switches file: its tables, counters and groups by name.

make shell SWITCH=s1 SWITCHES=switches.json
python -m controlplane.shell s1 --switches switches.json

The shell takes the P4Info from the switch. It only reads, so that it goes beside a running controller; with --write it
takes the switch over. It wants protobuf 3.20, so it runs in an environment of its own, which `make shell` (or
`./setup.sh shell`) makes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.common import command_line
from controlplane.targets.base import SwitchAddress, TargetError
from controlplane.targets.p4runtime.session import ask, new_election_id
from controlplane.targets.switches_file import SwitchesFileError, load_switches

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv-shell"
ANSWER_SECONDS = 5.0

READING = (0, 1)
"""Election id below every controller's. A switch that has had a controller answers reads with it, but no writes."""


class ShellError(Exception):
    """Error: the shell cannot be opened; the message says what to do."""


def command(switch: SwitchAddress, python: Path, election_id: tuple[int, int] = READING) -> list[str]:
    """Return the command that starts p4runtime-shell on a switch."""
    made = [str(python), "-m", "p4runtime_sh", "--grpc-addr", switch.address, "--device-id", str(switch.device_id)]
    made += ["--election-id", ",".join(map(str, election_id))]
    if switch.tls is not None:
        made.append("--ssl")
        files = {
            "--cacert": switch.tls.authority,
            "--cert": switch.tls.certificate,
            "--private-key": switch.tls.key,
        }
        for option, file in files.items():
            made += [option, str(file)] if file is not None else []
    return made


def find(name: str, switches: Path) -> SwitchAddress:
    """Return a switch of a switches file. Raise ShellError or SwitchesFileError where there is none."""
    known = load_switches(switches)
    if name not in known:
        raise ShellError(f"{switches} has no switch {name!r}; it has {', '.join(known)}")
    return known[name]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line.make("controlplane.shell", __doc__)
    parser.add_argument("switch", help="its name in the switches file")
    parser.add_argument(
        "--switches", type=Path, metavar="FILE", default=Path("switches.json"), help="default: %(default)s"
    )
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        default=ENVIRONMENT / "bin" / "python",
        help="Python of the environment that has p4runtime-shell (default: %(default)s)",
    )
    parser.add_argument(
        "--write", action="store_true", help="become the switch's controller, instead of its present one"
    )
    arguments = parser.parse_args(argv)
    try:
        switch = find(arguments.switch, arguments.switches)
        if not arguments.python.is_file():
            raise ShellError(f"there is no {arguments.python}: make shell makes that environment (./setup.sh shell)")
        answer = ask(switch, ANSWER_SECONDS)
        if not answer.loaded:
            raise ShellError(f"switch {switch.name} ({switch.address}) runs no program: `inart deploy` loads one")
    except (ShellError, SwitchesFileError, TargetError) as error:
        print(f"shell: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"switch {switch.name} at {switch.address}, device {switch.device_id}: {answer}", flush=True)
    started = command(switch, arguments.python, new_election_id() if arguments.write else READING)
    os.execv(started[0], started)
    raise AssertionError("execv returned")


if __name__ == "__main__":
    sys.exit(main())
