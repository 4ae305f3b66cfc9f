"""What a controller listens on, and whom it lets in: the options of `deploy --serve` and `serve`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.rpc.client import ControllerError
from controlplane.rpc.tls import Tls, add_tls_arguments, is_local, tls_from
from controlplane.runtime.access import Access, load_tokens
from controlplane.runtime.controller import Bound, listen


@dataclass(frozen=True)
class Listening:
    """Ports that are bound, and whom the controller knows there."""

    bound: Bound
    access: Access
    tls: Tls | None = None


def add_listen_arguments(parser: argparse.ArgumentParser) -> None:
    """Who may do what, and TLS."""
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
    add_tls_arguments(parser)


def open_listening(arguments: argparse.Namespace, address: str) -> Listening:
    """Bind what the arguments ask for. Raises ControllerError, ValueError: it would let everybody in, a port is taken,
    files cannot be used."""
    tls = tls_from(arguments)
    server = replace(tls, token=None) if tls is not None and tls.encrypted else None
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
    bound = listen(address, server, *more)
    return Listening(bound, Access(tokens, certificates=certificates), server)


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
