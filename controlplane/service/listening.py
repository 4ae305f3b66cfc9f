"""The address on which a controller listens, and whom it lets in: options of `serve`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.common.access import AUTHORITY_FOLDER, REVOKED_FILE, TOKENS_FILE, Access, Revoked, issuer_of
from controlplane.common.log_lines import Log
from controlplane.common.rpc.channels import check_listen
from controlplane.common.rpc.client import ControllerError
from controlplane.common.rpc.tls import FOLDER_FILES, Tls, credentials, credentials_folder, is_local
from controlplane.common.tokens import load_tokens
from controlplane.service.controller import Bound, listen
from controlplane.service.measure import Measurements
from controlplane.service.network import Network
from controlplane.service.snapshot import Snapshots

if TYPE_CHECKING:
    from controlplane.service.web.server import Web


@dataclass(frozen=True)
class Listening:
    """Ports that are bound, and who may do what there."""

    bound: Bound
    access: Access
    tls: Tls | None = None
    web: Web | None = None

    def show(self, network: Network, log: Log) -> Callable[[], None]:
        """Serve the page, if it was asked for. Return a function that ends that."""
        if self.web is None:
            return lambda: None
        from controlplane.service.web.server import Site

        measurements = Measurements(network)
        measurements.start()
        self.web.start(Site(Snapshots(network, measurements)))
        log.info(f"page, snapshot and metrics on {self.web.url}")

        def close() -> None:
            assert self.web is not None
            self.web.close()
            measurements.close()

        return close


def add_listen_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who may do what."""
    group = parser.add_argument_group("who may do what")
    group.add_argument(
        "--credentials",
        type=Path,
        metavar="DIR",
        help="the controller's folder of `inart certificates`: authority.pem lets those with certificates in, `tokens` "
        "those with tokens; a folder `authority` with its key renews certificates (default: $INART_CREDENTIALS)",
    )
    group.add_argument(
        "--insecure", action="store_true", help="let everybody who reaches it do everything, also over a network"
    )
    parser.add_argument(
        "--web",
        metavar="HOST:PORT",
        help="serve a page for the browser here, /api/snapshot, and /metrics for Prometheus",
    )


@dataclass(frozen=True)
class Door:
    """The rules for who may do what at a controller's addresses, and with what TLS; `more` are further addresses with
    theirs."""

    access: Access
    tls: Tls | None
    more: tuple[tuple[str, Tls | None], ...] = ()


def check_listening(arguments: argparse.Namespace, address: str) -> Door:
    """Return what the arguments ask for, without binding a port. Raise ControllerError or ValueError where everybody
    would be let in, or files cannot be used."""
    check_listen(address, "the controller's address")
    second: str | None = arguments.config.controller.tokens_listen
    if second is not None:
        check_listen(second, "tokens_listen")
    folder = credentials_folder(arguments.credentials)
    listed = folder / TOKENS_FILE if folder is not None and (folder / TOKENS_FILE).is_file() else None
    tokens = load_tokens(listed) if listed is not None else {}
    tls = None if folder is None or (listed is not None and not _has_keys(folder)) else credentials(folder)
    server = replace(tls, token=None) if tls is not None and tls.encrypted else None
    if server is not None and (expired := server.expired()):
        raise ValueError(f"nobody could come in: {expired}")
    certificates = server is not None and server.authority is not None
    if second is not None and not (tokens and certificates):
        raise ValueError(
            f"tokens_listen is a second address, where the credentials let in those with certificates ("
            f"{FOLDER_FILES['authority']}) and those with tokens ({TOKENS_FILE}): {folder} has no such two files"
        )
    if listed is not None and certificates and second is None:
        raise ValueError(
            f"{listed}: certificates and tokens do not go on one address, and {FOLDER_FILES['authority']} beside it "
            "asks for certificates: give tokens a second address (tokens_listen in --config), or remove one of the two"
        )
    if not arguments.insecure:
        for one in filter(None, (address, second)):
            _check_closed(one, server, bool(tokens) or certificates)
    more = [(second, replace(server, authority=None))] if second is not None and server is not None else []
    own = server.certificate if server is not None else None
    revoked = Revoked(own.with_name(REVOKED_FILE)) if own is not None else None
    place = None if folder is None else folder / AUTHORITY_FOLDER
    issuer = issuer_of(place) if place is not None and place.is_dir() else None
    return Door(Access(tokens, certificates=certificates, revoked=revoked, issuer=issuer), server, tuple(more))


def _has_keys(folder: Path) -> bool:
    """Return whether a credentials folder has files for TLS, rather than only a list of tokens."""
    return any((folder / FOLDER_FILES[part]).is_file() for part in ("authority", "certificate", "key"))


def open_listening(arguments: argparse.Namespace, address: str) -> Listening:
    """Bind what the arguments ask for. Raise the errors of `check_listening`, and ControllerError where a port is
    taken."""
    door = check_listening(arguments, address)
    access, server = door.access, door.tls
    web = _open_web(arguments.web, access, server, insecure=arguments.insecure) if arguments.web is not None else None
    try:
        return Listening(listen(address, server, *door.more), access, server, web)
    except BaseException:
        if web is not None:
            web.close()
        raise


def _open_web(address: str, access: Access, tls: Tls | None, *, insecure: bool) -> Web:
    try:
        from controlplane.service.web.server import Web, WebError
    except ModuleNotFoundError as error:
        raise ControllerError(f"--web: {error}: pip install 'inart[web]' brings it") from None
    if not insecure:
        _check_closed(address, tls, access.restricted)
    try:
        return Web(address, access, tls)
    except WebError as error:
        raise ControllerError(str(error)) from None


def _check_closed(address: str, tls: Tls | None, known: bool) -> None:
    if is_local(address):
        return
    if tls is None:
        raise ControllerError(
            f"{address} leaves this machine: give --credentials DIR (`inart certificates` makes it). With --insecure "
            "everybody who reaches it may do everything"
        )
    if not known:
        raise ControllerError(
            f"{address} leaves this machine: the credentials need {FOLDER_FILES['authority']}, so that agents and "
            f"operators show certificates, or {TOKENS_FILE}. With --insecure everybody who reaches it may do everything"
        )
