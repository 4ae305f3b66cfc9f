"""Admits connections to a coordinator over TLS, and issues certificates to sites.

A connection may speak if it shows a certificate that was not revoked. Two messages are answered here:

    {"type": "enrol", "token", "site"}    a certificate and its key, for a token: the only message without a certificate
    {"type": "renew"}                     the next ones, for the node that shows its present certificate

Tokens, issuer and revoked certificates are those of the coordinator's credentials folder, as a controller has them
(controlplane/common/access.py, tokens.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from controlplane.common.access import (
    AUTHORITY_FOLDER,
    REVOKED_FILE,
    TOKENS_FILE,
    Access,
    Caller,
    Denied,
    Revoked,
    issuer_of,
    parse_uri,
    peer_began,
)
from controlplane.common.tokens import TokenFile
from controlplane.planner.strategies.wan.site_rounds import NAME
from overlay.core.errors import OverlayError

ISSUED_DAYS = 1.0
"""Days for which a certificate that a coordinator issues is valid."""


class Admission:
    """Admits connections by the coordinator's credentials folder.

    Args:
        folder: the folder itself, not a copy: names of sites that have exchanged tokens are recorded in it.

    Attributes:
        takes_tokens: whether a connection may come without a certificate, to exchange a token.

    Raises:
        ValueError: the folder has tokens and no authority that could sign certificates for them.
    """

    def __init__(self, folder: Path) -> None:
        place, listed = folder / AUTHORITY_FOLDER, folder / TOKENS_FILE
        self.takes_tokens = listed.is_file()
        if self.takes_tokens and not place.is_dir():
            raise ValueError(
                f"{listed}: sites exchange tokens for certificates, and {place} is missing, which signs these; "
                "`inart site token` links it"
            )
        issuer = issuer_of(place, ISSUED_DAYS) if place.is_dir() else None
        self._tokens = TokenFile(listed)
        self._nodes = folder.resolve().parent / "nodes"  # of `inart certificates`, with a folder for each certificate
        self._revoked = Revoked(folder / REVOKED_FILE)
        self._access = Access(certificates=True, revoked=self._revoked, issuer=issuer)

    def answer(self, message: Any, certificate: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the answer to a message of a connection with this certificate (as `getpeercert` gives it, empty for
        none); None if the message is for the coordinator. Raise OverlayError with the reason if the other end may not
        speak.
        """
        kind = message.get("type") if isinstance(message, dict) else None
        try:
            if kind == "enrol" and self.takes_tokens:
                return self._enrolled(str(message["token"]), str(message["site"]))
            if not certificate:
                raise OverlayError("this coordinator wants a certificate, or a token, which a site exchanges for one")
            caller = _caller_of(certificate)
            if caller is not None:
                self._access.check_revoked(caller, lambda: peer_began(certificate))
            if kind != "renew":
                return None
            if caller is None or caller.role != "node":
                raise OverlayError(f"only sites' certificates are renewed here, not that of {caller or 'no name'}")
            return self._issued(caller, peer_began(certificate))
        except Denied as error:
            raise OverlayError(str(error)) from None

    def _enrolled(self, token: str, site: str) -> dict[str, str]:
        if not NAME.fullmatch(site) or not site.strip("."):
            raise OverlayError(
                f"{site[:80]!r} is no name of a site: 1 to 64 letters, digits, dots, dashes or underscores"
            )
        from controlplane.common.authority import begin_of_new  # here: only an issuer has its library

        caller = Caller("node", site)
        try:
            began = begin_of_new(self._revoked, caller)
            self._tokens.claim(token, site, lambda name: (self._nodes / name).exists())
            return self._issued(caller, began)
        except (OSError, ValueError) as error:
            raise OverlayError(f"the coordinator cannot use its credentials: {error}") from None

    def _issued(self, caller: Caller, began: datetime) -> dict[str, str]:
        """Return the answer with a certificate, whose validity began then, and its key."""
        if self._access.issuer is None:
            raise OverlayError("this coordinator issues no certificates: `inart site token` prepares its credentials")
        certificate, key = self._access.issuer(caller, began)
        return {"type": "certificate", "certificate": certificate.decode(), "key": key.decode()}


def _caller_of(certificate: Mapping[str, Any]) -> Caller | None:
    """Return the holder of a certificate; None for one of a foreign authority that names none."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return next((caller for caller in map(parse_uri, uris) if caller is not None), None)
