"""TLS between agents and controller: which files, and the command-line options for them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class Tls:
    """PEM files. `authority`: certificate of the CA that signed the other side's certificate.

    A server with an authority wants certificates from its clients (mutual TLS). A client without certificate and key
    only checks the server.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS: a certificate needs its key, and a key its certificate")
        for path in (self.certificate, self.key, self.authority):
            if path is not None and not path.is_file():
                raise ValueError(f"TLS: {path} does not exist")

    def _read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        files = (self.key, self.certificate, self.authority)
        key, certificate, authority = (path.read_bytes() if path else None for path in files)
        return key, certificate, authority

    def channel_credentials(self) -> grpc.ChannelCredentials:
        key, certificate, authority = self._read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        key, certificate, authority = self._read()
        if key is None or certificate is None:
            raise ValueError("TLS: a server needs --tls-cert and --tls-key")
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """--tls-cert, --tls-key, --tls-ca."""
    group = parser.add_argument_group("TLS (default: plaintext; use it where the controller leaves the machine)")
    group.add_argument("--tls-cert", type=Path, metavar="PEM", help="own certificate")
    group.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
    group.add_argument("--tls-ca", type=Path, metavar="PEM", help="certificate of the authority of the other side")


def tls_from(arguments: argparse.Namespace) -> Tls | None:
    """The Tls that the arguments ask for. Raises ValueError."""
    files = (arguments.tls_cert, arguments.tls_key, arguments.tls_ca)
    return Tls(*files) if any(files) else None
