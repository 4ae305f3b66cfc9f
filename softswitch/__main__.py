"""``python -m softswitch``: run one switch or a whole fabric, or talk to a running one.

python -m softswitch prog.json -i 0@veth0 -i 1@veth1 --grpc-server-addr 127.0.0.1:9559 --cpu-port 255
python -m softswitch fabric FILE.json
python -m softswitch stats SOCKET
python -m softswitch trace SOCKET --packets 5
python -m softswitch ctl SOCKET stats | shape ... | reboot ...
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from softswitch import __version__, config, control, statistics
from softswitch.errors import SoftswitchError
from softswitch.p4runtime import P4RuntimeError, Tls
from softswitch.p4runtime.service import API_VERSION
from softswitch.p4runtime.status import MAX_STATUS_BYTES
from softswitch.switches import Switches
from softswitch.tracing import Tracer

_log = logging.getLogger(__name__)
_LEVELS = {"trace": "DEBUG", "debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR", "off": "CRITICAL"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status: 0 done, 1 failed (the reason is on stderr), 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["fabric"]:
            return _fabric(given[1:])
        if given[:1] == ["ctl"]:
            return _ctl(given[1:])
        if given[:1] == ["stats"]:
            return _stats(given[1:])
        if given[:1] == ["trace"]:
            return _trace(given[1:])
        return _single(given)
    except (config.ConfigError, control.ControlError, SoftswitchError, P4RuntimeError, OSError) as error:
        print(f"softswitch: {error}", file=sys.stderr)
        return 1


def _single(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch",
        description="A v1model switch that serves P4Runtime; options are named as simple_switch_grpc names them.",
        epilog="""examples:
  python -m softswitch prog.json -i 0@veth0 -i 1@veth1 --p4info prog.p4info.txtpb --control /tmp/switch.sock
  python -m softswitch --no-p4 -i 0@veth0 --device-id 1 --cpu-port 255 --grpc-server-addr 127.0.0.1:9559
  python -m softswitch prog.json -i 0@veth0 -i 1@veth1 --trace

other commands, each with --help:
  python -m softswitch fabric FILE.json       many switches in one process
  python -m softswitch stats SOCKET           counters and drop reasons of a running switch
  python -m softswitch trace SOCKET           the path of its next packets through parser, tables and actions
  python -m softswitch ctl SOCKET ...         shape a link, reboot a device""",
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
        help="HOST:PORT (port 0: any) or unix:PATH; may be repeated [0.0.0.0:9559]",
    )
    parser.add_argument("--control", metavar="PATH", help="control socket, for 'python -m softswitch ctl'")
    parser.add_argument(
        "--pcap",
        type=Path,
        metavar="FOLDER",
        help="record what each interface receives and sends, in INTERFACE_in.pcap and INTERFACE_out.pcap of a folder "
        "(--pcap=FOLDER; --pcap alone: this one)",
    )
    _common(parser)
    # simple_switch_grpc wants its target's options behind "--", here they may be anywhere; and a folder after "=".
    given = [argument for argument in arguments if argument != "--"]
    options = parser.parse_args(["--pcap=." if argument == "--pcap" else argument for argument in given])
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
    )
    addresses = tuple(options.grpc_server_addr or ["0.0.0.0:9559"])
    fabric = config.FabricConfig((device,), addresses, options.control, options.threads or 1, options.seed or 0)
    return _serve(fabric, options)


def _fabric(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch fabric", description="Run all switches of a fabric file in one process."
    )
    parser.add_argument("file", type=Path, help="JSON; docs/softswitch.md describes it")
    parser.add_argument(
        "--grpc-server-addr", action="append", metavar="ADDRESS", help="instead of the file's grpc; may be repeated"
    )
    parser.add_argument("--control", metavar="PATH", help="instead of the file's control socket")
    _common(parser)
    options = parser.parse_args(arguments)
    fabric = config.load(options.file)
    fabric = config.FabricConfig(
        fabric.devices,
        tuple(options.grpc_server_addr or fabric.grpc),
        options.control or fabric.control,
        fabric.threads if options.threads is None else options.threads,
        fabric.seed if options.seed is None else options.seed,
    )
    return _serve(fabric, options)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, help="packet-processing threads [1]")
    parser.add_argument("--seed", type=int, help="of injected loss, duplication, jitter and reordering [0]")
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
    log = parser.add_mutually_exclusive_group()
    log.add_argument("--log-console", action="store_true", help="log to stderr (where it goes anyway)")
    log.add_argument("--log-file", type=Path, metavar="FILE", help="log to a file")
    parser.add_argument(
        "-L", "--log-level", choices=_LEVELS, default="warn", help="[warn]; trace also logs the path of every packet"
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


def _tls(options: argparse.Namespace) -> Tls | None:
    if not options.grpc_server_ssl:
        return None
    if options.grpc_server_cert is None or options.grpc_server_key is None:
        raise config.ConfigError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if options.grpc_server_with_client_auth and options.grpc_server_cacert is None:
        raise config.ConfigError("--grpc-server-with-client-auth needs --grpc-server-cacert")
    roots = None if options.grpc_server_cacert is None else options.grpc_server_cacert.read_bytes()
    return Tls(
        options.grpc_server_key.read_bytes(),
        options.grpc_server_cert.read_bytes(),
        roots,
        options.grpc_server_with_client_auth,
    )


def _serve(fabric: config.FabricConfig, options: argparse.Namespace) -> int:
    logging.basicConfig(
        filename=options.log_file,
        level=_LEVELS[options.log_level],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # A large batch is millions of objects without cycles: collecting at every 700th costs four times what parsing does.
    gc.set_threshold(50_000, 20, 20)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    switches = Switches(fabric, _tls(options), options.max_status_bytes)
    server = tracer = None
    try:
        if fabric.control is not None:
            server = control.ControlServer(fabric.control, switches)
        if options.trace:
            tracer = Tracer(switches, lambda text: print(text, flush=True))
        elif options.log_level == "trace":
            tracer = Tracer(switches, _log.debug)
        switches.start()
        devices = ",".join(str(device.device_id) for device in fabric.devices)
        ready = f"READY grpc={','.join(switches.addresses)} devices={devices}"
        if fabric.control is not None:
            ready += f" control={fabric.control}"
        print(ready, flush=True)
        if options.ready_fd is not None:
            with os.fdopen(options.ready_fd, "w") as channel:
                channel.write(ready + "\n")
        stop.wait()
    finally:
        if server is not None:
            server.stop()
        if tracer is not None:
            tracer.stop()
        switches.stop()
    return 0


def _stats(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch stats",
        description="Counters by port, and why frames were dropped, of a running softswitch.",
        epilog="""examples:
  python -m softswitch stats /tmp/switch.sock
  python -m softswitch stats /tmp/switch.sock s1 --every 1
  python -m softswitch stats /tmp/switch.sock --json | jq '.devices["1"].drops'""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("socket", help="path given as --control, or 'control' in the fabric file")
    parser.add_argument("device", nargs="?", help="id or name; all when left out")
    parser.add_argument("--json", action="store_true", help="as JSON, with all members")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="again and again, until interrupted")
    options = parser.parse_args(arguments)
    if options.every is not None and options.every <= 0:
        parser.error("--every must be more than 0")
    request: dict[str, Any] = {} if options.device is None else {"device": _device(options.device)}
    while True:
        stats = control.call(options.socket, "stats", **request)
        print(json.dumps(stats, indent=2) if options.json else statistics.text(stats), flush=True)
        if options.every is None:
            return 0
        try:
            time.sleep(options.every)
        except KeyboardInterrupt:
            return 0
        print(flush=True)


def _trace(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch trace",
        description="The path of a running switch's next packets: parser states, tables with key and action, "
        "statements, copies, drops with their reason; with lines of the P4 program. Other packets run at full speed.",
        epilog="""examples:
  python -m softswitch trace /tmp/switch.sock --packets 3
  python -m softswitch trace /tmp/switch.sock s1 --port 2 --seconds 5
  python -m softswitch trace /tmp/switch.sock s1 --out-port 1 --json | jq -c '.[] | select(.kind == "table")'""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("socket", help="path given as --control, or 'control' in the fabric file")
    parser.add_argument("device", nargs="?", help="id or name; needed if there are several")
    parser.add_argument("-n", "--packets", type=int, default=10, metavar="N", help="end after so many packets [10]")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="end after so many seconds [60]")
    parser.add_argument("--port", type=int, metavar="N", help="only packets that come in on this port")
    parser.add_argument("--out-port", type=int, metavar="N", help="only packets of which a copy leaves by this port")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each packet: the list of its steps")
    options = parser.parse_args(arguments)
    if options.device is None:
        devices = list(control.call(options.socket, "stats")["devices"])
        if len(devices) > 1:
            parser.error(f"give one of the devices {', '.join(devices)}")
        options.device = devices[0]
    request: dict[str, Any] = {"packets": options.packets, "seconds": options.seconds}
    if options.port is not None:
        request["in_port"] = options.port
    if options.out_port is not None:
        request["out_port"] = options.out_port
    try:
        for answer in control.conversation(options.socket, "trace", device=_device(options.device), **request):
            if "packet" in answer:
                print(json.dumps(answer["packet"]) if options.json else "\n".join(answer["lines"]), flush=True)
            elif answer["result"]["packets"] < options.packets:
                print(f"{answer['result']['packets']} packets in {options.seconds:g} s", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return 0


def _device(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _ctl(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch ctl", description="Talk to a running softswitch over its control socket."
    )
    parser.add_argument("socket", help="path given as --control, or 'control' in the fabric file")
    commands = parser.add_subparsers(dest="command", required=True)
    stats = commands.add_parser("stats", help="counters by device and port, and why frames were dropped, as JSON")
    stats.add_argument("device", nargs="?", help="id or name; all when left out")
    shape = commands.add_parser("shape", help="change how what a port sends is shaped")
    shape.add_argument("device", help="id or name")
    shape.add_argument("port", type=int)
    shape.add_argument(
        "settings",
        nargs="+",
        metavar="NAME=VALUE",
        help=f"of {', '.join(config.SHAPE_RANGES)}; rate_mbps=none: no limit",
    )
    reboot = commands.add_parser("reboot", help="wipe a device: pipeline, tables and registers lost, clients cut off")
    reboot.add_argument("device", help="id or name")
    reboot.add_argument("--down", type=float, default=0.0, metavar="SECONDS", help="how long it stays off [0]")
    options = parser.parse_args(arguments)
    request: dict[str, Any] = {}
    if options.device is not None:
        request["device"] = _device(options.device)
    if options.command == "shape":
        request |= {"port": options.port, "shape": dict(_setting(parser, text) for text in options.settings)}
    if options.command == "reboot":
        request["down_s"] = options.down
    result = control.call(options.socket, options.command, **request)
    if result is not None:
        print(json.dumps(result, indent=2))
    return 0


def _setting(parser: argparse.ArgumentParser, text: str) -> tuple[str, float | None]:
    name, equals, value = text.partition("=")
    try:
        return name, None if value == "none" else float(value)
    except ValueError:
        parser.error(f"{text}: give NAME=NUMBER" if equals else f"{text}: give NAME=VALUE")


if __name__ == "__main__":
    sys.exit(main())
