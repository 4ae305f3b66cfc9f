"""`inart site`: trains across data centres. One coordinator runs anywhere; each site runs a training script.

    inart site coordinator --sites 3 --listen 10.0.0.1:9700 --credentials DIR
    inart site run --coordinator 10.0.0.1:9700 --site paris -- torchrun --nproc-per-node 8 train.py
    inart site status --coordinator 10.0.0.1:9700
    inart site token --folder secrets --output osaka

`run` starts the script, which joins with `inart.sites.init()`. `agent` is a trial of the network without training: it
averages random values and checks the means. `status` prints sites, measured rates and the round under way.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.common import child, command_line
from controlplane.common.config_file import SitesTable, add_config_argument
from controlplane.common.descriptors import raise_limit
from controlplane.common.log_lines import dated
from controlplane.common.rpc.tls import FOLDER_FILES, add_tls_arguments, credentials_folder, is_local, tls_from
from controlplane.planner.plan.framing import MTU
from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.addresses import address, written
from overlay.core.errors import OverlayError
from overlay.core.site_network import SiteNetwork
from overlay.core.site_quorum import SiteQuorum
from overlay.net.admission import Admission
from overlay.net.coordinator import Coordinator
from overlay.net.site_desk import SiteDesk
from overlay.net.tls import Security
from overlay.sites.enrolment import Unreached, enrol
from overlay.sites.group import (
    ADVERTISE,
    COORDINATOR,
    FLOAT_BITS,
    LISTEN,
    SITE,
    init,
)
from overlay.sites.packing import BITS
from overlay.sites.site_tokens import SiteTokens

CHUNK_VALUES = 16_384
"""Least float32 values of a chunk: 64 KB, which suits slow links; chunks are larger where links are fast."""

AT_LEAST_ONE = command_line.whole(1, what="a whole number of at least 1")
ASK_SECONDS = 10.0
ASK_AGAIN_SECONDS = 0.5
WAIT_SECONDS = 60.0
"""Seconds that `inart site run` waits for a coordinator: sites and coordinators may be started in any order."""


def advertised(text: str) -> str:
    """Check HOST:PORT or "none", for argparse, and return it."""
    return text if text == "none" else written(address(text))


def _links(file: Path, network: SiteNetwork) -> None:
    """Read declared rates into the network, from a file such as {"links": [["paris", "tokyo", 800], ..], "out":
    {"paris": 1000}, "into": {..}}, in Mbit/s, each link in one direction. Raise OverlayError where the file is
    unusable.
    """
    try:
        known = json.loads(file.read_text())
        for sender, receiver, mbps in known.get("links", ()):
            network.told(str(sender), str(receiver), float(mbps))
            network.known.add((str(sender), str(receiver)))
        network.out |= {str(site): float(mbps) for site, mbps in known.get("out", {}).items()}
        network.into |= {str(site): float(mbps) for site, mbps in known.get("into", {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OverlayError(f'links {file}: {error}; it has {{"links": [[from, to, Mbit/s], ..]}}') from None


@dataclass(frozen=True)
class SiteSettings:
    """Settings of the rounds of sites that an operator gives.

    Attributes:
        sites: number of sites for which the first round waits.
        patience: seconds that a round waits for a site that is late; None to wait as long as it is worth it
            (`SiteRounds`).
        probe_seconds: how long each link is measured; 0 for no measurement.
        all_pairs: measure every pair of sites, also one whose round trip is that of a way over a third site
            (`SiteDesk`).
    """

    sites: int
    patience: float | None = None
    probe_seconds: float = 1.0
    all_pairs: bool = False


def make_coordinator(
    host: str,
    port: int,
    settings: SiteSettings,
    network: SiteNetwork,
    *,
    security: Security | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Coordinator:
    """Return a coordinator of sites, which is running and which the caller closes.

    Args:
        host, port: where it listens.
        settings: settings of the rounds.
        network: declared rates of links between sites.
        security: TLS; None for plaintext.
        log: gets each line of log.

    Raises:
        OSError: it cannot listen.
    """
    quorum = SiteQuorum()
    policy = SiteRounds(
        network, sites=settings.sites, patience=settings.patience, broken=network.broken,
        allows=quorum.allows, did=quorum.did,
        overdue=lambda task: desk.again(f"round {task.round} has taken half of its time"),
    )  # fmt: skip
    desk = SiteDesk(
        policy, network, probe_seconds=settings.probe_seconds, all_pairs=settings.all_pairs, quorum=quorum, log=log
    )
    return Coordinator(
        policy, host, port, desk=desk, quorum=quorum, security=security, log=desk.log, finished=desk.task_done
    )


def coordinate(arguments: argparse.Namespace) -> int:
    """Run `inart site coordinator` until a signal ends it. Return the exit status."""
    folder = credentials_folder(arguments.credentials)
    admission = None if folder is None else Admission(folder)
    security = Security.of(tls_from(arguments), admission)
    host, port = arguments.listen
    if security is None and not arguments.insecure and not is_local(f"{host}:{port}"):
        raise OverlayError(
            f"{host}:{port} leaves this machine: give --credentials DIR (`inart certificates` makes it), or --insecure"
        )
    raise_limit()
    given: SitesTable = arguments.config.sites
    network = SiteNetwork(given.chunk or CHUNK_VALUES, given.mtu or MTU)
    if given.links is not None:
        _links(given.links, network)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    settings = SiteSettings(arguments.sites, given.patience, given.probe_seconds, given.all_pairs)
    with make_coordinator(
        host, port, settings, network, security=security, log=dated(sys.stdout)
    ) as coordinator:  # fmt: skip
        here = written(coordinator.address)
        print(f"waiting for {arguments.sites} sites at {here}; each of them runs:", flush=True)
        who = " --credentials DIR" if security is not None else ""
        print(f"    inart site run --coordinator {here} --site NAME{who} -- torchrun ... train.py", flush=True)
        stop.wait()
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run `inart site run`: check that the coordinator answers, then run the command with the environment that `init`
    needs. Return the command's exit status, 128 + N where signal N ended it; the command ends with this process.
    """
    if not arguments.command:
        raise OverlayError("what is to be run? inart site run --coordinator HOST:PORT -- torchrun ... train.py")
    environment = dict(os.environ)
    _wait_for_coordinator(arguments)
    environment[COORDINATOR] = written(arguments.coordinator)
    for name, value in ((SITE, arguments.site), (LISTEN, arguments.listen), (ADVERTISE, arguments.advertise)):
        if value is not None:
            environment[name] = value if isinstance(value, str) else written(value)
    if arguments.credentials is not None:
        environment["INART_CREDENTIALS"] = str(arguments.credentials.resolve())
    return child.run(arguments.command, environment)


class NoCoordinator(OverlayError):
    """No coordinator answers at this address; one may be started later."""


def _wait_for_coordinator(arguments: argparse.Namespace) -> None:
    """Return when the coordinator answers; a token is exchanged for a certificate. Raise OverlayError, at once if
    waiting would not help.
    """
    end, said = time.monotonic() + arguments.timeout, False
    folder = credentials_folder(arguments.credentials)
    while True:
        try:
            if folder is not None and (folder / FOLDER_FILES["token"]).is_file():
                enrol(arguments.coordinator, arguments.site or socket.gethostname(), folder)
            ask(arguments)
            return
        except (NoCoordinator, Unreached) as error:
            if time.monotonic() + ASK_AGAIN_SECONDS > end:
                raise OverlayError(f"{error} (waited {arguments.timeout:g} s: --timeout)") from None
            if not said:
                print(f"inart site: {error}; waits up to {arguments.timeout:g} s for it", file=sys.stderr, flush=True)
                said = True
        time.sleep(ASK_AGAIN_SECONDS)


def ask(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the coordinator's status. Raise OverlayError, with the remedy, if it does not answer."""
    (host, port), tls = arguments.coordinator, Security.of(tls_from(arguments))
    try:
        with socket.create_connection((host, port), ASK_SECONDS) as plain:
            connection = plain if tls is None else tls.connect.wrap_socket(plain)
            with connection, connection.makefile("rwb") as stream:
                stream.write(b'{"type": "status"}\n')
                stream.flush()
                line = stream.readline()
        answer: dict[str, Any] = json.loads(line or b"null") or {}
        if answer.get("type") == "refused":
            raise OverlayError(f"the coordinator at {host}:{port} refuses this: {answer['reason']}")
    except ssl.SSLError as error:
        raise OverlayError(f"the coordinator at {host}:{port} and this end do not trust each other: {error}; both need "
                           "--credentials, of one `inart certificates`, or neither") from None  # fmt: skip
    except OSError as error:
        raise NoCoordinator(
            f"no coordinator answers at {host}:{port}: {error}; `inart site coordinator` starts one, and both ends "
            "need --credentials, or neither"
        ) from None
    except ValueError as error:
        raise OverlayError(f"{host}:{port} is no coordinator of sites: {error}") from None
    if "sites" not in answer:
        raise OverlayError(f"{host}:{port} gives no status: is it `inart site coordinator`, with --credentials or not?")
    return answer


def status(arguments: argparse.Namespace) -> int:
    """Run `inart site status`: print the coordinator's status. Return the exit status."""
    found = ask(arguments)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, site in sorted(found["sites"].items()):
        part = "takes part" if site["takes_part"] else "has joined"
        print(f"{name:<20} {site['address']:<24} {part:<11} round {site['round']}, state {site['state'] or '-'}")
    _show_network(found)
    if not found["begun"]:
        print(f"waits for {found['waits_for_sites']} more sites before the first round")
    elif found["waits_for"]:
        print(f"round {found['round']} waits for {', '.join(found['waits_for'])}")
    for task in found["under_way"]:
        without = task["without_result"]
        what = "agree on scales" if task["op"] == "maximum" else "add"
        print(f"round {task['round']} is under way: {task['sites']} sites {what}, {len(without)} of them wait for the "
              f"result ({', '.join(without)})")  # fmt: skip
    if found["measuring"]:
        print("the network is being measured")
    if not found["acts"]:
        print("no round begins here: too few sites have joined")
    last = found["last"]
    if last:
        print(f"round {last['round']}: {last['seconds']:.3f} s, {len(last['sites'])} sites")
    return 0


def _show_network(found: dict[str, Any]) -> None:
    """Print the rates that the sites have measured of each other."""
    for link in found["links"]:
        print(
            f"{link['from']:<20} -> {link['to']:<20} {link['mbps']:10.2f} Mbit/s {link['round_trip_ms']:8.1f} ms "
            f"{link['loss']:7.2%} lost"
        )
    for words, limits in (("sends", found["sends_at_most_mbps"]), ("receives", found["receives_at_most_mbps"])):
        for site, mbps in sorted(limits.items()):
            print(f"{site:<20} {words} at most {mbps:.2f} Mbit/s in all")


def trial(arguments: argparse.Namespace) -> int:
    """Run `inart site agent`: average random values, round after round, and print how long each took. Return the exit
    status.
    """
    group = init(
        written(arguments.coordinator), arguments.site, credentials=arguments.credentials,
        listen=arguments.listen and written(arguments.listen),
        advertise=arguments.advertise, timeout=arguments.timeout, log=dated(sys.stderr),
    )  # fmt: skip
    if group is None:
        raise OverlayError("$RANK is above 0: `inart site agent` is for one process a site")
    with group:
        began = group.agree(np.zeros(8, np.uint8), 0).round
        rng = np.random.default_rng(list(group.site.encode()))
        for number in range(began, began + arguments.rounds):
            values = rng.standard_normal(arguments.values).astype(np.float32)
            begin = time.monotonic()
            found = group.average(values, round=number, bits=arguments.bits)
            group.offer(np.zeros(8, np.uint8), number + 1)
            line = {"round": number, "seconds": time.monotonic() - begin, "sites": found.sites,
                    "mean_square": float(np.mean(values.astype(np.float64) ** 2))}  # fmt: skip
            print(json.dumps(line), flush=True)
    return 0


def make_token(arguments: argparse.Namespace) -> int:
    """Run `inart site token`: make a token, or revoke one, or list all. Return the exit status."""
    tokens = SiteTokens(arguments.folder)
    if arguments.revoke is not None:
        tokens.revoke(arguments.revoke)
        print(f"token {arguments.revoke} is revoked: the coordinator disconnects sites that have joined with it")
    elif arguments.list:
        for line in tokens.lines():
            print(line)
    elif arguments.output is None:
        raise OverlayError("where is the token to be written? inart site token --folder DIR --output DIR")
    else:
        made = tokens.make(arguments.output, arguments.site, arguments.days, once=arguments.once)
        print(f"token {made.number} is in {arguments.output}: copy this folder to the site, which gives it as "
              "--credentials")  # fmt: skip
    return 0


def _who(parser: argparse.ArgumentParser, *, site: bool) -> None:
    default = os.environ.get(COORDINATOR)
    parser.add_argument("--coordinator", type=address, required=default is None, metavar="HOST:PORT",
                        default=default,
                        help=f"where `inart site coordinator` listens (default: ${COORDINATOR})")  # fmt: skip
    if site:
        parser.add_argument("--site", metavar="NAME", help="this site's name, as on its certificate (default: the "
                            "host's name)")  # fmt: skip
        parser.add_argument("--listen", type=address, metavar="HOST:PORT", help="for other sites, who are told the "
                            "address that the coordinator sees (default: all addresses, any port)")  # fmt: skip
        parser.add_argument("--advertise", type=advertised, metavar="HOST:PORT", help="where other sites reach this "
                            "one, if elsewhere; port 0: the one of --listen; none: they reach none")  # fmt: skip
    add_tls_arguments(parser)


def _token_parser(verbs: Any) -> None:
    four = verbs.add_parser("token", help="make a token, which a site exchanges for a certificate")
    four.add_argument("--folder", type=Path, required=True, metavar="DIR", help="of `inart certificates`")
    four.add_argument("--output", type=Path, metavar="DIR", help="a new credentials folder for the site")
    four.add_argument("--site", metavar="NAME", help="the only site that may use it (default: any new name)")
    four.add_argument("--days", type=float, default=1.0, metavar="N", help="lifetime in days (default: 1)")
    four.add_argument("--once", action="store_true", help="exchange it for one certificate only")
    four.add_argument("--revoke", metavar="ID", help="make none: revoke this token and the certificates issued for it")
    four.add_argument("--list", action="store_true", help="make none: list all")
    four.set_defaults(act=make_token)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inart site", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("coordinator", help="the server that sites join: it measures, plans, and carries no values")
    one.add_argument("--sites", type=AT_LEAST_ONE, required=True, metavar="N", help="the first round waits for so "
                     "many; more may join at any time, and any may leave")  # fmt: skip
    one.add_argument("--listen", type=address, default=("127.0.0.1", 9700), metavar="HOST:PORT",
                     help="for sites (default: 127.0.0.1:9700)")  # fmt: skip
    one.add_argument("--insecure", action="store_true", help="let everybody who reaches it join")
    add_config_argument(one)
    add_tls_arguments(one)
    one.set_defaults(act=coordinate)
    two = verbs.add_parser("run", help="run a training script as a site")
    _who(two, site=True)
    two.add_argument("--timeout", type=float, default=WAIT_SECONDS, metavar="S",
                     help="it waits so long for a coordinator to answer (default %(default)g)")  # fmt: skip
    two.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="torchrun ... train.py")
    two.set_defaults(act=run)
    three = verbs.add_parser("agent", help="a trial without training: average random values")
    _who(three, site=True)
    three.add_argument("--values", type=AT_LEAST_ONE, default=1_000_000, help="float32 values (default 1000000)")
    three.add_argument("--rounds", type=AT_LEAST_ONE, default=3, help="averages (default 3)")
    three.add_argument("--bits", type=int, default=FLOAT_BITS, choices=(FLOAT_BITS, *BITS), help="of a value")
    three.add_argument("--timeout", type=float, default=600.0, help="s that anything may take")
    three.set_defaults(act=trial)
    _token_parser(verbs)
    last = verbs.add_parser("status", help="sites, measured rates, and what the round waits for")
    _who(last, site=False)
    command_line.add_json(last)
    last.set_defaults(act=status)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    if arguments.verb == "run":
        arguments.command = command_line.program(arguments.command)
    try:
        return int(arguments.act(arguments))
    except (OverlayError, OSError, ValueError) as error:
        print(f"inart site: {error}", file=sys.stderr)
        return command_line.failed(error)


if __name__ == "__main__":
    sys.exit(main())
