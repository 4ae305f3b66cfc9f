"""The command line of a switch, with simple_switch_grpc's names, and warnings for options that have no effect here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from softswitch import __version__
from softswitch.app import config
from softswitch.p4runtime.status import MAX_STATUS_BYTES
from softswitch.p4runtime.unknown import API_VERSION

LEVELS = {"trace": "DEBUG", "debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR", "off": "CRITICAL"}
DROP_PORT = 511  # p4c compiles v1model's mark_to_drop to this port.

# Options of simple_switch_grpc that this switch accepts but has no use for, with the reason.
_NOT_HERE = {
    "--thrift-port": ("PORT", "there is no Thrift server; P4Runtime and --control do its work"),
    "--nanolog": ("ADDRESS", "there is no such log; --trace and the command 'trace' show the path of packets"),
    "--notifications-addr": (
        "ADDRESS",
        "there are none; digests and idle timeouts come over P4Runtime",
    ),
    "--dump-packet-data": ("BYTES", "no log has bytes of packets; --pcap records them, --trace shows their path"),
    "--max-port-count": ("N", "ports 0 to 510 can always be used"),
}


def program_name() -> str:
    """Return the command as it was started: the installed one, or the module."""
    return "softswitch" if Path(sys.argv[0]).name == "softswitch" else "python -m softswitch"


def single(arguments: list[str]) -> tuple[config.FabricConfig, argparse.Namespace]:
    """Return the checked options of one switch; end the process with status 2 and a reason if they are wrong."""
    parser = _parser()
    # simple_switch_grpc wants its target's options behind "--"; here they may be anywhere.
    options = parser.parse_args(_with_folder([argument for argument in arguments if argument != "--"]))
    if options.program is None and not options.no_p4:
        parser.error("give the program's JSON, or --no-p4 to wait for one over P4Runtime")
    if options.program is not None and options.no_p4:
        parser.error("--no-p4 and a program exclude each other")
    if options.p4info is not None and options.program is None:
        parser.error("--p4info needs the program's JSON")
    device = config.DeviceConfig(
        options.device_id,
        str(options.device_id),
        options.cpu_port,
        options.program,
        options.p4info,
        tuple(_interface(parser, text) for text in options.interface),
        options.pcap,
        options.priority_queues,
        not options.no_offload,
    )
    addresses = tuple(options.grpc_server_addr or [config.DEFAULT_ADDRESS])
    fabric = config.FabricConfig((device,), addresses, options.control, options.threads or 1, options.seed or 0)
    _warn(options)
    return fabric, options


def _warn(options: argparse.Namespace) -> None:
    """Warn about options that do less than with simple_switch_grpc."""
    said = [f"{name}: {why}" for name, (_, why) in _NOT_HERE.items() if getattr(options, _place(name)) is not None]
    if options.drop_port != DROP_PORT:
        said.append(f"--drop-port {options.drop_port}: the drop port is {DROP_PORT}, as v1model has it")
    if options.log_flush and options.log_file is None:
        said.append("--log-flush: without --log-file it has nothing to flush")
    for each in said:
        print(f"softswitch: warning: {each}", file=sys.stderr)


def _place(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _with_folder(arguments: list[str]) -> list[str]:
    """Join ``--pcap FOLDER``, or ``--pcap`` alone (which means the current folder), into one argument.

    The word after ``--pcap`` is the folder unless it is an option or looks like the program.
    """
    result: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--pcap":
            folder = bool(rest) and not rest[0].startswith("-") and not _is_program(rest[0])
            argument = f"--pcap={rest.pop(0) if folder else '.'}"
        result.append(argument)
    return result


def _is_program(argument: str) -> bool:
    return argument.endswith(".json") or Path(argument).is_file()


_EXAMPLES = """examples:
  python -m softswitch prog.json -i 0@veth0 -i 1@veth1 --p4info prog.p4info.txtpb --control /tmp/switch.sock
  python -m softswitch --no-p4 -i 0@veth0 --device-id 1 --cpu-port 255 --grpc-server-addr 127.0.0.1:9559
  python -m softswitch prog.json -i 0@veth0 -i 1@veth1 --trace

other commands, each with --help:
  python -m softswitch fabric FILE.json       many switches in one process
  python -m softswitch stats SOCKET           counters and drop reasons of a running switch
  python -m softswitch trace SOCKET           the path of its next packets through parser, tables and actions
  python -m softswitch cli SOCKET FILE        run the commands of simple_switch_CLI
  python -m softswitch ctl SOCKET ...         shape a link, reboot a device, inject faults"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name(),
        description="A v1model switch that serves P4Runtime; options are named as simple_switch_grpc names them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", nargs="?", type=Path, help="bmv2 JSON, as p4c writes it")
    parser.add_argument(
        "-i",
        "--interface",
        action="append",
        default=[],
        metavar="PORT@INTERFACE",
        help="attach a Linux interface to a port; may be repeated",
    )
    parser.add_argument(
        "--packet-in",
        metavar="ipc://FILE",
        help="ports without an interface are on a nanomsg socket, as PTF's platform nn and bmv2 have it; needs no root",
    )
    parser.add_argument(
        "-v", "--version", action="version", version=f"softswitch {__version__}, P4Runtime {API_VERSION}"
    )
    parser.add_argument("--device-id", type=int, default=0, help="P4Runtime device id [0]")
    parser.add_argument("--cpu-port", type=int, help="port of packet-in and packet-out; without it there is neither")
    parser.add_argument("--no-p4", action="store_true", help="start without program and wait for one over P4Runtime")
    parser.add_argument(
        "--p4info", type=Path, help="P4Info of the program, so that P4Runtime clients find it installed"
    )
    parser.add_argument(
        "--grpc-server-addr",
        action="append",
        metavar="ADDRESS",
        help="HOST:PORT (port 0: any) or unix:PATH; may be repeated "
        f"[{config.DEFAULT_ADDRESS}: from this machine only]",
    )
    parser.add_argument("--control", metavar="PATH", help="control socket, for 'python -m softswitch ctl'")
    parser.add_argument(
        "--pcap",
        type=Path,
        metavar="FOLDER",
        help="record what each interface receives and sends, in INTERFACE_in.pcap and INTERFACE_out.pcap of a folder "
        "(alone: this one)",
    )
    parser.add_argument(
        "--priority-queues",
        type=_queues,
        default=1,
        metavar="N",
        help="queues of each shaped port, for priorities below N; the line serves the highest first [1]",
    )
    parser.add_argument(
        "--no-offload",
        action="store_true",
        help="hand every frame to the kernel by itself, not datagrams of one UDP flow as one super-frame",
    )
    _add_habits(parser)
    common(parser)
    return parser


def _add_habits(parser: argparse.ArgumentParser) -> None:
    """Add options of simple_switch_grpc that change nothing here."""
    habits = parser.add_argument_group("taken because simple_switch_grpc has them")
    habits.add_argument("--drop-port", type=int, default=DROP_PORT, metavar="N", help=f"always {DROP_PORT} here")
    habits.add_argument("--log-flush", action="store_true", help="what is logged is in the file at once anyway")
    for name, (value, why) in _NOT_HERE.items():
        habits.add_argument(name, metavar=value, help=why)


def _queues(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= config.MAX_PRIORITY_QUEUES:
        raise argparse.ArgumentTypeError(f"there may be 1 to {config.MAX_PRIORITY_QUEUES}, got {text!r}")
    return int(text)


def common(parser: argparse.ArgumentParser) -> None:
    """Add the options that one switch and a fabric have in common."""
    parser.add_argument("--threads", type=int, help="packet-processing threads [1]")
    parser.add_argument("--seed", type=int, help="random seed of injected loss, duplication, jitter and reordering [0]")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="also write the READY line here, then close it")
    parser.add_argument("--grpc-server-ssl", action="store_true", help="serve gRPC over TLS")
    parser.add_argument("--grpc-server-cert", type=Path, metavar="PEM", help="the server's certificate")
    parser.add_argument("--grpc-server-key", type=Path, metavar="PEM", help="the server's private key")
    parser.add_argument(
        "--grpc-server-cacert", type=Path, metavar="PEM", help="certificates that clients are checked by"
    )
    parser.add_argument(
        "--grpc-server-with-client-auth", action="store_true", help="refuse clients without a valid certificate"
    )
    parser.add_argument("--log-console", action="store_true", help="log to stderr; with --log-file to both")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="log to a file instead of stderr")
    parser.add_argument(
        "-L", "--log-level", choices=LEVELS, default="warn", help="[warn]; trace also logs the path of every packet"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print the path of every packet (slow; see also 'trace --help')"
    )
    parser.add_argument(
        "--max-status-bytes",
        type=int,
        default=MAX_STATUS_BYTES,
        metavar="N",
        help="cut the error details of a failed batch to N bytes; clients must accept these as metadata [%(default)s]",
    )


def _interface(parser: argparse.ArgumentParser, text: str) -> config.PortConfig:
    number, at, interface = text.partition("@")
    if not at or not number.isdecimal() or not interface:
        parser.error(f"-i {text}: give PORT@INTERFACE, as in 0@veth0")
    return config.PortConfig(int(number), interface)
