"""The address on which a controller listens, and whom it lets in: options of `serve`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.common.access import REVOKED_FILE, Access, Caller, Revoked, load_tokens
from controlplane.common.rpc.channels import check_listen
from controlplane.common.rpc.client import ControllerError
from controlplane.common.rpc.tls import Tls, add_tls_arguments, is_local, tls_from
from controlplane.service.controller import Bound, listen
from controlplane.service.event_log import EventLog
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

    def show(self, network: Network, log: EventLog) -> Callable[[], None]:
        """Serve the page, if it was asked for. Return a function that ends that."""
        if self.web is None:
            return lambda: None
        from controlplane.service.web.server import Site

        measurements = Measurements(network)
        measurements.start()
        self.web.start(Site(Snapshots(network, measurements, log)))
        log(f"page, snapshot and metrics on {self.web.url}")

        def close() -> None:
            assert self.web is not None
            self.web.close()
            measurements.close()

        return close


def add_listen_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who may do what, and those of TLS."""
    group = parser.add_argument_group("who may do what")
    group.add_argument("--tokens", type=Path, metavar="FILE", help="a line TOKEN ROLE NAME for each who may come in")
    group.add_argument(
        "--tokens-listen",
        metavar="HOST:PORT",
        help="a second address, for those with tokens, where those with certificates have the first one",
    )
    group.add_argument(
        "--insecure", action="store_true", help="let everybody who reaches it do everything, also over a network"
    )
    group.add_argument(
        "--authority", type=Path, metavar="DIR",
        help="the folder `authority` of `inart certificates`, with its key: who shows a certificate gets its next one",
    )  # fmt: skip
    group.add_argument(
        "--certificate-days", type=float, default=7.0, metavar="N", help="how long these hold (%(default)g)"
    )
    add_tls_arguments(parser)
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
    if arguments.tokens_listen is not None:
        check_listen(arguments.tokens_listen, "--tokens-listen")
    tls = tls_from(arguments)
    server = replace(tls, token=None) if tls is not None and tls.encrypted else None
    if server is not None and (expired := server.expired()):
        raise ValueError(f"nobody could come in: {expired}")
    certificates = server is not None and server.authority is not None
    tokens = load_tokens(arguments.tokens) if arguments.tokens is not None else {}
    second = arguments.tokens_listen
    if second is not None and not (tokens and certificates):
        raise ValueError("--tokens-listen is for --tokens beside certificates (--credentials or --tls-ca)")
    if tokens and certificates and second is None:
        if arguments.tls_ca is not None:
            raise ValueError(
                "certificates and tokens do not go on one address: give a second one, --tokens-listen HOST:PORT, "
                "or no --tls-ca"
            )
        assert server is not None
        server, certificates = replace(server, authority=None), False
    if not arguments.insecure:
        for one in filter(None, (address, second)):
            _check_closed(one, server, bool(tokens) or certificates)
    more = [(second, replace(server, authority=None))] if second is not None and server is not None else []
    own = server.certificate if server is not None else None
    revoked = Revoked(own.with_name(REVOKED_FILE)) if own is not None else None
    issuer = issuer_of(arguments.authority, arguments.certificate_days) if arguments.authority is not None else None
    return Door(Access(tokens, certificates=certificates, revoked=revoked, issuer=issuer), server, tuple(more))


def issuer_of(folder: Path, days: float) -> Callable[[Caller], tuple[bytes, bytes]]:
    """Return a function that makes certificates. Raise ValueError where the folder has no authority with its key."""
    from controlplane.common.authority import Authority, CertificatesError  # here: not all machines have its library

    if not (folder / "key.pem").is_file() or not (folder / "certificate.pem").is_file() or not days > 0:
        raise ValueError(f"--authority is the folder of an authority with its key, for some days: {folder} is none")
    try:
        return Authority.of(folder, "", days).next_of
    except CertificatesError as error:
        raise ValueError(str(error)) from None


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
            f"{address} leaves this machine: give --credentials DIR (`inart certificates` makes it; or --tls-cert, "
            "--tls-key and --tls-ca, or --tokens instead of --tls-ca). With --insecure everybody who reaches it may "
            "do everything"
        )
    if not known:
        raise ControllerError(
            f"{address} leaves this machine: give --tls-ca, so that agents and operators need certificates, or "
            "--tokens FILE. With --insecure everybody who reaches it may do everything"
        )
