"""TLS files and tokens, by which agents, operators, controllers and switches identify themselves, and their option."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from controlplane.common.whole_file import Fresh

ORGANISATION = "InArt"
"""Organisation of the authorities that `inart certificates` makes. Their certificates name roles, which are then
checked."""
CONTROLLER_NAME = "controller.inart"
logger = logging.getLogger("inart")
Made = TypeVar("Made")
FOLDER_FILES = {"authority": "authority.pem", "certificate": "certificate.pem", "key": "key.pem", "token": "token"}


@dataclass(frozen=True)
class Tls:
    """A set of PEM files for one side of a connection.

    Attributes:
        authority: the certificate of the CA that signed the other side's certificate. A server with an authority
            demands certificates from its clients (mutual TLS).
        certificate, key: this side's own; a client without them only checks the server.
        token: a file whose first word identifies a client that has no certificate; without TLS, only for a controller
            on this machine.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    token: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS: a certificate needs its key, and a key its certificate")
        for path in (self.certificate, self.key, self.authority, self.token):
            if path is not None and not path.is_file():
                raise ValueError(f"TLS: {path} does not exist")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted, rather than only having a token."""
        return self.certificate is not None or self.authority is not None

    def _read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        files = (self.key, self.certificate, self.authority)
        try:
            key, certificate, authority = (path.read_bytes() if path else None for path in files)
        except OSError as error:
            raise ValueError(f"TLS: cannot read {error.filename}: {error.strerror}") from None
        return key, certificate, authority

    def read_token(self) -> str:
        """Return the client's token, or "" where it has none. Raise ValueError where the file cannot be used."""
        if self.token is None:
            return ""
        try:
            words = self.token.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read the token in {self.token}: {error}") from None
        if not words:
            raise ValueError(f"{self.token} holds no token")
        return words[0]

    def channel_credentials(self) -> grpc.ChannelCredentials:
        key, certificate, authority = self._read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that read the files at each handshake, so that they may be replaced while the server runs.
        Raise ValueError where the files cannot be used."""
        if self.certificate is None or self.key is None:
            raise ValueError("TLS: a server needs certificate.pem and key.pem in its credentials")
        fresh = self.fresh(Tls._server_configuration)
        return grpc.dynamic_ssl_server_credentials(
            fresh.now(),
            fresh.renewed,  # type: ignore[arg-type]  # None: they are as they were
            require_client_authentication=self.authority is not None,
        )

    def _server_configuration(self) -> Any:
        self.check_pair()
        key, certificate, authority = self._read()
        assert key is not None and certificate is not None, "a server has both"
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def check_pair(self) -> None:
        """Check that certificate, key and authority are PEM, and that certificate and key are a pair; raise ValueError
        otherwise."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password="")
            if self.authority is not None:
                context.load_verify_locations(self.authority)
        except (ssl.SSLError, OSError) as error:
            files = ", ".join(str(file) for file in (self.certificate, self.key, self.authority) if file is not None)
            raise ValueError(f"TLS: {files}: {error}; are they PEM, certificate and key a pair?") from None

    def fresh(self, make: Callable[[Tls], Made]) -> Fresh[Made]:
        """Return what `make` makes of these files, which is made again when they are replaced. Raise what `make`
        raises."""
        files = [file for file in (self.certificate, self.key, self.authority) if file is not None]
        said = "what replaced TLS files is not used: %s"
        return Fresh(files, lambda: make(self), lambda error: logger.warning(said, error))

    def expired(self) -> str:
        """Return, in words, which of the own certificate and the authority's has expired; "" where neither has.

        gRPC tells a client only that the connection was closed. Files that cannot be read are ignored.
        """
        for path in (self.certificate, self.authority):
            try:
                end = not_after(path.read_text()) if path is not None else None
            except (OSError, ValueError, LookupError):
                continue
            if path is not None and end is not None and end < datetime.datetime.now(datetime.UTC):
                return (
                    f"the certificate {path} expired on {end:%Y-%m-%d %H:%M} UTC: `inart certificates --folder DIR "
                    "--renew NAME` makes it anew, where the authority is"
                )
        return ""

    def names_roles(self) -> bool:
        """Return whether `inart certificates` made the authority. Raise ValueError where the file cannot be read."""
        if self.authority is None:
            return False
        try:
            authorities = ssl.create_default_context(cafile=str(self.authority)).get_ca_certs()
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"TLS: {self.authority} is not a certificate in PEM: {error}") from None
        wanted = (("organizationName", ORGANISATION),)
        return any(wanted in authority.get("subject", ()) for authority in authorities)


_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_VERSION = 0xA0


def not_after(pem: str) -> datetime.datetime:
    """Return when the first certificate of a PEM file expires (RFC 5280, section 4.1). Raise ValueError or LookupError
    where there is none.

    Agents are installed without a library for certificates, so this function parses the DER itself.
    """
    head, tail = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start = pem.index(head)
    der = ssl.PEM_cert_to_DER_cert(pem[start : pem.index(tail, start) + len(tail)])
    [(_, certificate)] = _der(der)
    fields = _der(_der(certificate)[0][1])
    # The fields are [version,] serialNumber, signature, issuer, validity.
    tag, text = _der(fields[4 if fields[0][0] == _VERSION else 3][1])[1]
    return datetime.datetime.strptime(text.decode(), _TIMES[tag]).replace(tzinfo=datetime.UTC)


def _der(data: bytes) -> list[tuple[int, bytes]]:
    """Return the DER elements that follow each other, as (tag, content)."""
    elements, at = [], 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(data[at : at + digits], "big")
            at += digits
        elements.append((tag, data[at : at + size]))
        at += size
    return elements


def switch_name(switch: str) -> str:
    """Return the name in a switch's certificate."""
    return f"{switch.lower()}.switch.inart"


def is_local(address: str) -> bool:
    """Return whether "host:port" or "unix:PATH" can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option --credentials."""
    parser.add_argument(
        "--credentials",
        type=Path,
        metavar="DIR",
        help="folder of `inart certificates` that says who this is (default: $INART_CREDENTIALS)",
    )


def tls_from(arguments: argparse.Namespace) -> Tls | None:
    """Return the Tls of --credentials, else that of $INART_CREDENTIALS. Raise ValueError where files cannot be used."""
    return credentials(arguments.credentials)


def credentials_folder(folder: Path | None) -> Path | None:
    """Return this folder, else the one that $INART_CREDENTIALS names; None where there is neither."""
    named = folder if folder is not None else os.environ.get("INART_CREDENTIALS") or None
    return None if named is None else Path(named)


def credentials(folder: Path | None = None) -> Tls | None:
    """Return the Tls of a folder with authority.pem, and either certificate.pem and key.pem, or token.

    The folder is $INART_CREDENTIALS where none is given; return None where that is not set. Raise ValueError where
    files cannot be used.
    """
    folder = credentials_folder(folder)
    if folder is None:
        return None
    there = {part: folder / name for part, name in FOLDER_FILES.items() if (folder / name).is_file()}
    if not there:
        raise ValueError(
            f"credentials: {folder} has none of {', '.join(FOLDER_FILES.values())}; `inart certificates` makes them"
        )
    return Tls(**there)
