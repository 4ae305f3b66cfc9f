"""Exchanges a site's token for a certificate of the coordinator's authority, and renews the certificate.

The site's credentials folder has the token and the authority's certificate, by which the site knows the coordinator
before it shows the token. Certificate and key are added to the folder.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controlplane.common.rpc.client import ControllerError, NoAnswer
from controlplane.common.rpc.renewal import Renewal
from controlplane.common.rpc.tls import FOLDER_FILES, Tls, not_after
from controlplane.common.whole_file import replace_file
from overlay.core.errors import OverlayError
from overlay.net.tls import Security, check_certificate

ASK_SECONDS = 10.0

Address = tuple[str, int]


class Unreached(OverlayError):
    """The coordinator does not answer; it may be started later."""


def enrol(coordinator: Address, site: str, folder: Path) -> None:
    """Exchange the token in a credentials folder for a certificate, unless the folder has one that has not expired.

    Raises:
        Unreached: the coordinator does not answer.
        OverlayError: the coordinator refuses the site, or the folder cannot be used.
    """
    try:
        authority, secret = folder / FOLDER_FILES["authority"], Tls(token=folder / FOLDER_FILES["token"]).read_token()
        if _holds(folder):
            return
        context = ssl.create_default_context(cafile=str(authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # certificates name roles and no hosts
    except (OSError, ValueError) as error:
        raise OverlayError(f"{folder} needs a token and {FOLDER_FILES['authority']}: {error}") from None
    answer = _ask(coordinator, context, {"type": "enrol", "token": secret, "site": site})
    try:
        replace_file(folder / FOLDER_FILES["key"], answer["key"].encode())
        replace_file(folder / FOLDER_FILES["certificate"], answer["certificate"].encode(), 0o644)
        os.chmod(folder, 0o700)
    except OSError as error:
        raise OverlayError(f"{site}: its certificate cannot be kept in {folder}: {error}") from None


def _holds(folder: Path) -> bool:
    """Return whether the folder has a key, and a certificate that has not expired."""
    try:
        end = not_after((folder / FOLDER_FILES["certificate"]).read_text())
    except (OSError, ValueError, LookupError):
        return False
    return end > datetime.now(UTC) and (folder / FOLDER_FILES["key"]).is_file()


class SiteRenewal(Renewal):
    """Renews the certificate of a site, which the coordinator issues."""

    def __init__(self, coordinator: Address, tls: Tls, log: Callable[[str], None]) -> None:
        super().__init__("{}:{}".format(*coordinator), tls, log)
        self._at, self._site_tls = coordinator, tls

    def _next(self) -> tuple[bytes, bytes]:
        security = Security.of(self._site_tls)
        assert security is not None, "there is a certificate"
        try:
            answer = _ask(self._at, security.connect, {"type": "renew"})
        except Unreached as error:
            raise NoAnswer(str(error)) from None
        except OverlayError as error:
            raise ControllerError(str(error)) from None
        return answer["certificate"].encode(), answer["key"].encode()


def _ask(at: Address, context: ssl.SSLContext, message: dict[str, str]) -> dict[str, Any]:
    """Return the coordinator's answer with a certificate. Raise Unreached, and OverlayError with the coordinator's
    reason if it refuses.
    """
    where = f"{at[0]}:{at[1]}"
    takes_none = f"the coordinator at {where} takes no tokens, or is not the one that this token is for"
    try:
        with socket.create_connection(at, ASK_SECONDS) as plain, context.wrap_socket(plain) as connection:
            check_certificate(connection.getpeercert() or {}, "controller")
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        answer = json.loads(line or b"{}")
    except ssl.SSLError as error:
        raise OverlayError(f"{takes_none} ({error})") from None
    except OSError as error:
        raise Unreached(f"no coordinator answers at {where}: {error}") from None
    except ValueError as error:
        raise OverlayError(f"{where} is no coordinator of sites: {error}") from None
    if not isinstance(answer, dict) or answer.get("type") != "certificate":
        reason = answer.get("reason") if isinstance(answer, dict) else None
        raise OverlayError(f"the coordinator at {where} refused this site: {reason}" if reason else takes_none)
    return answer
