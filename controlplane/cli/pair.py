"""A controller with a store (`store` of --config), one of several of a network: it waits until it leads, and ends when
it no longer does.

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
from controlplane.common.config_file import ControllerTable
from controlplane.service.listening import check_listening
from controlplane.service.pair.etcd import EtcdStore
from controlplane.service.pair.leadership import AFTER_SECONDS, Leadership
from controlplane.service.pair.store import Store

LOST_STATUS = 3
NETWORK = re.compile(r"[A-Za-z0-9._-]+")
ETCD, ETCDS = "etcd://", "etcds://"


def open_store(given: str, credentials: Path | None) -> Store:
    """Return the store that the settings name. Raise DeployError where it cannot be used."""
    encrypted = given.startswith(ETCDS)
    addresses, _, network = given.removeprefix(ETCDS).removeprefix(ETCD).partition("/")
    members = addresses.split(",")
    named = given.startswith((ETCD, ETCDS)) and NETWORK.fullmatch(network)
    if not named or any(not member.rpartition(":")[2].isdigit() for member in members):
        raise DeployError(f"store {given}: wanted: {ETCD}HOST:PORT,HOST:PORT,.../NETWORK (any name for this network)")
    if encrypted != (credentials is not None):
        raise DeployError(f"store_credentials goes with {ETCDS}, and {ETCDS} with it")
    try:
        return EtcdStore(members, f"/inart/{network}", credentials)
    except OSError as error:
        raise DeployError(f"store_credentials {credentials}: {error}") from None


def lead(arguments: argparse.Namespace, log: logging.Logger) -> Leadership:
    """Wait until this controller leads. When it no longer does, the process ends at once.

    Raise DeployError where the options are wrong, and what `check_listening` raises.
    """
    settings: ControllerTable = arguments.config.controller
    assert settings.store is not None, "it is one of several"
    name = settings.name or f"{socket.gethostname()}/{arguments.serve}"

    def lost(reason: str) -> None:
        log.error(f"{name} does not lead any more: {reason}; it ends, so that another one can")
        for handler in log.handlers:
            handler.flush()
        os._exit(LOST_STATUS)  # Ends at once, as no thread may write to a switch any more.

    after = AFTER_SECONDS if settings.takeover_after is None else settings.takeover_after
    made = Leadership(open_store(settings.store, settings.store_credentials), name, lost, after=after)
    check_listening(arguments, arguments.serve)  # fails now rather than when it takes over
    made.wait(threading.Event(), log)
    log.info(f"{name} leads")
    return made
