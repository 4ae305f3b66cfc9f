"""``python -m softswitch`` runs one switch or a whole fabric, or talks to a running one.

python -m softswitch prog.json -i 0@veth0 -i 1@veth1 --grpc-server-addr 127.0.0.1:9559 --cpu-port 255
python -m softswitch fabric FILE.json
python -m softswitch stats SOCKET
python -m softswitch trace SOCKET --packets 5
python -m softswitch cli SOCKET commands.txt
python -m softswitch ctl SOCKET stats | shape ... | reboot ... | port add ... | port remove ... | run ... | crc ...
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from softswitch.app import cli, config, control, options
from softswitch.app.end_signal import EndSignal
from softswitch.app.switches import Switches
from softswitch.app.tracing import Tracer
from softswitch.dataplane import statistics
from softswitch.errors import SoftswitchError
from softswitch.p4runtime import P4RuntimeError, Tls

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status: 0 done, 1 failed (the reason is on stderr), 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["fabric"]:
            return _fabric(given[1:])
        if given[:1] == ["cli"]:
            return cli.main(given[1:])
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
    fabric, chosen = options.single(arguments)
    return _serve(fabric, chosen, chosen.packet_in)


def _fabric(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{options.program_name()} fabric", description="Run all switches of a fabric file in one process."
    )
    parser.add_argument("file", type=Path, help="JSON; docs/guide.md describes it")
    parser.add_argument(
        "--grpc-server-addr", action="append", metavar="ADDRESS", help="instead of the file's grpc; may be repeated"
    )
    parser.add_argument("--control", metavar="PATH", help="instead of the file's control socket")
    options.common(parser)
    chosen = parser.parse_args(arguments)
    fabric = config.load(chosen.file)
    fabric = config.FabricConfig(
        fabric.devices,
        tuple(chosen.grpc_server_addr or fabric.grpc),
        chosen.control or fabric.control,
        fabric.threads if chosen.threads is None else chosen.threads,
        fabric.seed if chosen.seed is None else chosen.seed,
    )
    return _serve(fabric, chosen)


def _tls(chosen: argparse.Namespace) -> Tls | None:
    if not chosen.grpc_server_ssl:
        return None
    if chosen.grpc_server_cert is None or chosen.grpc_server_key is None:
        raise config.ConfigError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if chosen.grpc_server_with_client_auth and chosen.grpc_server_cacert is None:
        raise config.ConfigError("--grpc-server-with-client-auth needs --grpc-server-cacert")
    roots = None if chosen.grpc_server_cacert is None else chosen.grpc_server_cacert.read_bytes()
    return Tls(
        chosen.grpc_server_key.read_bytes(),
        chosen.grpc_server_cert.read_bytes(),
        roots,
        chosen.grpc_server_with_client_auth,
    )


def _serve(fabric: config.FabricConfig, chosen: argparse.Namespace, packet_in: str | None = None) -> int:
    handlers: list[logging.Handler] = []
    if chosen.log_file is not None:
        handlers.append(logging.FileHandler(chosen.log_file))
    if chosen.log_console or not handlers:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        handlers=handlers,
        level=options.LEVELS[chosen.log_level],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # A large batch is millions of objects without cycles: collecting at every 700th costs four times as much as
    # parsing.
    gc.set_threshold(50_000, 20, 20)
    end = EndSignal()
    switches = Switches(fabric, _tls(chosen), chosen.max_status_bytes)
    server = tracer = packets = None
    try:
        if fabric.control is not None:
            server = control.ControlServer(fabric.control, switches)
        if packet_in is not None:
            packets = switches.packet_socket(fabric.devices[0].device_id, packet_in)
        if chosen.trace:
            tracer = Tracer(switches, lambda text: print(text, flush=True))
        elif chosen.log_level == "trace":
            tracer = Tracer(switches, _log.debug)
        switches.start()
        devices = ",".join(str(device.device_id) for device in fabric.devices)
        ready = f"READY grpc={','.join(switches.addresses)} devices={devices}"
        if fabric.control is not None:
            ready += f" control={fabric.control}"
        print(ready, flush=True)
        if chosen.ready_fd is not None:
            with os.fdopen(chosen.ready_fd, "w") as channel:
                channel.write(ready + "\n")
        end.wait()
    finally:
        if server is not None:
            server.stop()
        if tracer is not None:
            tracer.stop()
        if packets is not None:
            packets.stop()
        switches.stop()
    return 0


def _stats(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{options.program_name()} stats",
        description="Counters by port, and why frames were dropped, of a running softswitch.",
        epilog="""examples:
  python -m softswitch stats /tmp/switch.sock
  python -m softswitch stats /tmp/switch.sock s1 --every 1
  python -m softswitch stats /tmp/switch.sock --json | jq '.devices["1"].drops'""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("socket", help="path given as --control, or 'control' in the fabric file")
    parser.add_argument("device", nargs="?", help="id or name; all when left out")
    parser.add_argument("--json", action="store_true", help="print JSON, with all members")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="repeat every so many seconds, until interrupted"
    )
    chosen = parser.parse_args(arguments)
    if chosen.every is not None and chosen.every <= 0:
        parser.error("--every must be more than 0")
    request: dict[str, Any] = {} if chosen.device is None else {"device": control.device(chosen.device)}
    while True:
        stats = control.call(chosen.socket, "stats", **request)
        print(json.dumps(stats, indent=2) if chosen.json else statistics.text(stats), flush=True)
        if chosen.every is None:
            return 0
        try:
            time.sleep(chosen.every)
        except KeyboardInterrupt:
            return 0
        print(flush=True)


def _trace(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{options.program_name()} trace",
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
    chosen = parser.parse_args(arguments)
    if chosen.device is None:
        chosen.device = control.only_device(chosen.socket)
    request: dict[str, Any] = {"packets": chosen.packets, "seconds": chosen.seconds}
    if chosen.port is not None:
        request["in_port"] = chosen.port
    if chosen.out_port is not None:
        request["out_port"] = chosen.out_port
    try:
        for answer in control.conversation(chosen.socket, "trace", device=control.device(chosen.device), **request):
            if "packet" in answer:
                print(json.dumps(answer["packet"]) if chosen.json else "\n".join(answer["lines"]), flush=True)
            elif answer["result"]["packets"] < chosen.packets:
                print(f"{answer['result']['packets']} packets in {chosen.seconds:g} s", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return 0


def _ctl_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{options.program_name()} ctl", description="Talk to a running softswitch over its control socket."
    )
    parser.add_argument("socket", help="path given as --control, or 'control' in the fabric file")
    commands = parser.add_subparsers(dest="command", required=True)
    stats = commands.add_parser("stats", help="counters by device and port, and why frames were dropped, as JSON")
    stats.add_argument("device", nargs="?", help="id or name; all when left out")
    shape = commands.add_parser("shape", help="change how what a port sends is shaped")
    shape.add_argument("device", help="id or name")
    shape.add_argument("port", type=int, help="number")
    shape.add_argument(
        "settings",
        nargs="+",
        metavar="NAME=VALUE",
        help=f"of {', '.join(config.SHAPE_RANGES)}; rate_mbps=none: no limit",
    )
    reboot = commands.add_parser("reboot", help="wipe a device: pipeline, tables and registers lost, clients cut off")
    reboot.add_argument("device", help="id or name")
    reboot.add_argument("--down", type=float, default=0.0, metavar="SECONDS", help="how long it stays off [0]")
    flip = commands.add_parser("flip", help="flip random bits in a device's registers, as broken memory does")
    flip.add_argument("device", help="id or name")
    flip.add_argument("register", help="prefix of the registers' names")
    flip.add_argument("--count", type=int, default=1, metavar="N", help="number of bits [1]")
    flip.add_argument("--most-index", type=int, metavar="I", help="only in elements 0 to I")
    run = commands.add_parser("run", help="run one command of bmv2's simple_switch_CLI; prints its result as JSON")
    run.add_argument("device", help="id or name")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="such as: register_read sums 3")
    crc = commands.add_parser("crc", help="choose what a crc16_custom or crc32_custom calculation computes")
    crc.add_argument("device", help="id or name")
    crc.add_argument("calculation", help="its name in the bmv2 JSON")
    crc.add_argument(
        "settings",
        nargs="+",
        metavar="NAME=NUMBER",
        help="polynomial (0x8005), and of initial, final_xor, reflect_data, reflect_remainder what is not 0",
    )
    port = commands.add_parser("port", help="give a device a port on a Linux interface, or take it away")
    changes = port.add_subparsers(dest="change", required=True)
    for change, does in (("add", "from now on the interface is this port"), ("remove", "the interface is free again")):
        one = changes.add_parser(change, help=does)
        one.add_argument("device", help="id or name")
        one.add_argument("port", type=int, help="number")
        if change == "add":
            one.add_argument("interface", help="its name, in the switch's network namespace")
    return parser


def _ctl(arguments: list[str]) -> int:
    parser = _ctl_parser()
    chosen = parser.parse_args(arguments)
    request: dict[str, Any] = {}
    if chosen.device is not None:
        request["device"] = control.device(chosen.device)
    if chosen.command == "port":
        chosen.command = f"port_{chosen.change}"
        request["port"] = chosen.port
        if chosen.change == "add":
            request["interface"] = chosen.interface
    if chosen.command == "shape":
        request |= {"port": chosen.port, "shape": dict(_setting(parser, text) for text in chosen.settings)}
    if chosen.command == "crc":
        numbers = dict(_number(parser, text) for text in chosen.settings)
        request |= {"calculation": chosen.calculation, "parameters": numbers}
    if chosen.command == "run":
        request["line"] = " ".join(chosen.words)
    if chosen.command == "reboot":
        request["down_s"] = chosen.down
    if chosen.command == "flip":
        request |= {"register": chosen.register, "count": chosen.count}
        if chosen.most_index is not None:
            request["most_index"] = chosen.most_index
    result = control.call(chosen.socket, chosen.command, **request)
    if chosen.command == "run":
        result = result["value"]
    if result is not None:
        print(json.dumps(result, indent=2))
    return 0


def _number(parser: argparse.ArgumentParser, text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        return name, int(value, 0)
    except ValueError:
        parser.error(f"{text}: give NAME=NUMBER")


def _setting(parser: argparse.ArgumentParser, text: str) -> tuple[str, float | None]:
    name, equals, value = text.partition("=")
    try:
        return name, None if value == "none" else float(value)
    except ValueError:
        parser.error(f"{text}: give NAME=NUMBER" if equals else f"{text}: give NAME=VALUE")


if __name__ == "__main__":
    sys.exit(main())
