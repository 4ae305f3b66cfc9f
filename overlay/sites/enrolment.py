"""Enrols a site that has a token: it gets a certificate from the coordinator, keeps it in a folder, and renews it.

The token has the SHA-256 of the authority's certificate. So the site asks any coordinator for that certificate first,
and sends the token's secret only over a connection to a coordinator whose certificate this authority has signed. The
site makes its key itself, and the key does not leave its machine.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.common.rpc.tls import FOLDER_FILES, Tls, not_after
from controlplane.common.whole_file import replace_file
from overlay.core.errors import OverlayError
from overlay.net.joining import Token, digest_of
from overlay.net.tls import Security, check_certificate

ASK_SECONDS = 10.0
AGAIN_SECONDS = 60.0
"""Longest wait, in seconds, before a renewal that has failed is tried again: the coordinator may be away."""

LEAST_SECONDS = 1.0
"""Least seconds between two renewals."""

OF_TOKEN = "token-id"
"""Name of the file, beside a certificate, with the ID of the token with which the certificate was bought."""

Address = tuple[str, int]
_log = logging.getLogger("inart.sites")


class Unreached(OverlayError):
    """No coordinator answers; one may be started later."""


class Enrolment:
    """A site's certificate, bought with a token.

    Args:
        coordinators: addresses of the coordinators.
        site: the site's name.
        token: the token.
        folder: where the certificate is kept, with its key; made where it is missing. None for a folder of the
            user's.
    """

    def __init__(self, coordinators: Sequence[Address], site: str, token: str, folder: Path | None = None) -> None:
        """Read the token. Raise OverlayError where the text is no token."""
        try:
            self._token = Token.of(token)
        except ValueError as error:
            raise OverlayError(str(error)) from None
        self._coordinators, self._site = coordinators, site
        self.folder = folder or _kept(self._token, site)
        self._stop = threading.Event()

    def enrol(self) -> Path:
        """Get a certificate where the folder has none that is valid, and return the folder. Raise Unreached where no
        coordinator answers, and OverlayError with the coordinator's reason where it refuses.
        """
        if self._holds():
            return self.folder
        certificate, authority = self._certified({"type": "enrol", "token": str(self._token), "site": self._site})
        replace_file(self.folder / FOLDER_FILES["authority"], authority.encode(), 0o644)
        replace_file(self.folder / FOLDER_FILES["certificate"], certificate.encode(), 0o644)
        replace_file(self.folder / OF_TOKEN, f"{self._token.number}\n".encode(), 0o644)
        return self.folder

    def keep(self, log: Callable[[str], None] = _log.info) -> None:
        """Renew the certificate whenever half of its time is over, in a thread, until `close`."""
        threading.Thread(target=self._keep, args=(log,), name="inart certificate", daemon=True).start()

    def close(self) -> None:
        """Renew the certificate no more."""
        self._stop.set()

    # --- the certificate ---

    def _file(self, part: str) -> Path:
        return self.folder / FOLDER_FILES[part]

    def _holds(self) -> bool:
        """Return whether the folder has a certificate that was bought with this token and has not expired."""
        try:
            bought = (self.folder / OF_TOKEN).read_text().strip()
            return bought == self._token.number and self._file("key").is_file() and self.seconds_left() > 0
        except (OSError, ValueError, LookupError):
            return False

    def seconds_left(self) -> float:
        end = not_after(self._file("certificate").read_text())
        return (end - datetime.now(UTC)).total_seconds()

    def _key(self) -> ec.EllipticCurvePrivateKey:
        """Return the site's key, made where there is none. It stays the same when the certificate is renewed, so that
        key and certificate always belong together.
        """
        file = self._file("key")
        if file.is_file():
            found = serialization.load_pem_private_key(file.read_bytes(), None)
            if isinstance(found, ec.EllipticCurvePrivateKey):
                return found
        made = ec.generate_private_key(ec.SECP256R1())
        pem = made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        replace_file(file, pem, 0o600)
        os.chmod(self.folder, 0o700)
        return made

    def _keep(self, log: Callable[[str], None]) -> None:
        wait = self._half()
        while not self._stop.wait(wait):
            try:
                certificate, _ = self._certified({"type": "renew"}, Security.of(self._tls()))
                replace_file(self._file("certificate"), certificate.encode(), 0o644)
                wait = self._half()
            except (OverlayError, OSError, ValueError) as error:
                log(f"{self._site}: its certificate was not renewed: {error}")
                wait = min(AGAIN_SECONDS, max(wait, LEAST_SECONDS))

    def _half(self) -> float:
        return max(LEAST_SECONDS, self.seconds_left() / 2)

    def _tls(self) -> Tls:
        return Tls(self._file("certificate"), self._file("key"), self._file("authority"))

    # --- the coordinator ---

    def _certified(self, message: dict[str, str], security: Security | None = None) -> tuple[str, str]:
        """Return the certificate that a coordinator gives for this message, and the authority's certificate. `security`
        is the TLS with this site's present certificate; None where it has none yet.
        """
        name = x509.Name([])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key(), hashes.SHA256())
        message = message | {"request": request.public_bytes(serialization.Encoding.PEM).decode()}
        unreached: Unreached | None = None
        for at in self._coordinators:
            try:
                authority = self._authority(at)
                answer = _ask(at, security.connect if security else _context(authority), message)
            except Unreached as error:
                unreached = error
                continue
            if answer.get("type") != "certificate":
                raise OverlayError(f"{self._site}: the coordinator refused this site: {answer.get('reason', answer)}")
            return str(answer["certificate"]), authority
        raise unreached or OverlayError("no coordinator is given")

    def _authority(self, at: Address) -> str:
        """Return the authority's certificate, after checking that it has the token's digest."""
        pem = str(_ask(at, _context(None), {"type": "authority"}, anybody=True).get("authority", ""))
        if not pem:
            raise OverlayError(_takes_none(at))
        try:
            right = hmac.compare_digest(digest_of(pem), self._token.digest)
        except ValueError:
            right = False
        if not right:
            raise OverlayError(f"the coordinator at {at[0]}:{at[1]} is not the one that this token is for: it has "
                               "another authority")  # fmt: skip
        return pem


def _kept(token: Token, site: str) -> Path:
    """Return where a site's certificate is kept unless a folder is given: a place for each authority and name."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "inart" / "sites" / token.digest[:16] / site.replace("/", "_").strip(".")


def _context(authority: str | None) -> ssl.SSLContext:
    """Return the TLS context of a connection without a certificate of this end. `authority` is the certificate (PEM) of
    the authority that must have signed the other end's. Where it is None, nothing is checked, and nothing secret may be
    sent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # certificates name roles and no hosts
    context.verify_mode = ssl.CERT_NONE if authority is None else ssl.CERT_REQUIRED
    if authority is not None:
        context.load_verify_locations(cadata=authority)
    return context


def _takes_none(at: Address) -> str:
    return f"the coordinator at {at[0]}:{at[1]} takes no tokens: start it with --credentials DIR --tokens FOLDER"


def _ask(at: Address, context: ssl.SSLContext, message: dict[str, str], *, anybody: bool = False) -> dict[str, Any]:
    """Return a coordinator's answer. With `anybody`, the other end need not prove that it is a coordinator."""
    where = f"{at[0]}:{at[1]}"
    try:
        with socket.create_connection(at, ASK_SECONDS) as plain, context.wrap_socket(plain) as connection:
            if not anybody:
                check_certificate(connection.getpeercert() or {}, "controller")
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        found = json.loads(line or b"{}")
    except ssl.SSLError as error:
        raise OverlayError(f"{_takes_none(at)} ({error})") from None
    except OSError as error:
        raise Unreached(f"no coordinator answers at {where}: {error}") from None
    except ValueError as error:
        raise OverlayError(f"{where} is no coordinator of sites: {error}") from None
    return found if isinstance(found, dict) else {}
