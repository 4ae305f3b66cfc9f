"""`serve --store`: a controller that is one of several of a network. It waits until it leads, and ends when it no
longer does.

It then ends with status 3, so that the service manager starts it again and it waits for its turn.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
import threading
from pathlib import Path

from controlplane.cli.options import DeployError
from controlplane.service.listening import check_listening
from controlplane.service.pair.etcd import EtcdStore
from controlplane.service.pair.leadership import AFTER_SECONDS, Leadership
from controlplane.service.pair.store import Store

LOST_STATUS = 3
NETWORK = re.compile(r"[A-Za-z0-9._-]+")
ETCD, ETCDS = "etcd://", "etcds://"


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a controller that is one of several."""
    group = parser.add_argument_group("one of several controllers")
    group.add_argument(
        "--store", metavar="S", help="store that they share: etcd://HOST:PORT,.../NETWORK, or etcds://..."
    )
    group.add_argument(
        "--store-credentials", type=Path, metavar="DIR",
        help="for etcds: folder with authority.pem, and certificate.pem and key.pem where the cluster asks for them",
    )  # fmt: skip
    group.add_argument("--name", metavar="NAME", help="this controller's name (default: its machine and address)")
    group.add_argument(
        "--takeover-after", type=float, default=AFTER_SECONDS, metavar="S",
        help="another takes over when the leader has been silent for so many seconds (%(default)g)",
    )  # fmt: skip


def open_store(arguments: argparse.Namespace) -> Store:
    """Return the store that the arguments name. Raise DeployError where it cannot be used."""
    given = arguments.store
    encrypted = given.startswith(ETCDS)
    addresses, _, network = given.removeprefix(ETCDS).removeprefix(ETCD).partition("/")
    members = addresses.split(",")
    named = given.startswith((ETCD, ETCDS)) and NETWORK.fullmatch(network)
    if not named or any(not member.rpartition(":")[2].isdigit() for member in members):
        raise DeployError(f"--store {given}: wanted: {ETCD}HOST:PORT,HOST:PORT,.../NETWORK (any name for this network)")
    if encrypted != (arguments.store_credentials is not None):
        raise DeployError(f"--store-credentials DIR goes with {ETCDS}, and {ETCDS} with it")
    try:
        return EtcdStore(members, f"/inart/{network}", arguments.store_credentials)
    except OSError as error:
        raise DeployError(f"--store-credentials {arguments.store_credentials}: {error}") from None


def lead(arguments: argparse.Namespace, log: logging.Logger) -> Leadership:
    """Wait until this controller leads. When it no longer does, the process ends at once.

    Raise DeployError where the options are wrong, and what `check_listening` raises.
    """
    name = arguments.name or f"{socket.gethostname()}/{arguments.serve}"
    if len(name.split()) != 1:
        raise DeployError(f"--name {name!r}: a controller's name must be one word")
    if not 0.2 <= arguments.takeover_after <= 600:
        raise DeployError("--takeover-after is 0.2 s or more")

    def lost(reason: str) -> None:
        log.error(f"{name} does not lead any more: {reason}; it ends, so that another one can")
        for handler in log.handlers:
            handler.flush()
        os._exit(LOST_STATUS)  # Ends at once, as no thread may write to a switch any more.

    made = Leadership(open_store(arguments), name, lost, after=arguments.takeover_after)
    check_listening(arguments, arguments.serve)  # fails now rather than when it takes over
    made.wait(threading.Event(), log)
    log.info(f"{name} leads")
    return made
