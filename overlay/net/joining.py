"""Lets sites join with a token: the coordinator gives the holder of a token a certificate of a day, and renews it.

A token is one string, ID.SECRET.DIGEST: the token's name, what proves that its holder may join, and the SHA-256 of the
authority's certificate, by which the holder knows the coordinator (as in kubeadm's tokens for joining). The folder of
`inart certificates` keeps of each token what is needed to check it, not the secret itself. A certificate says with
which token it was bought; when that token is revoked, the coordinator takes the certificate no more.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from controlplane.common.access import Caller
from controlplane.common.authority import Authority, CertificatesError, now
from controlplane.common.rpc.tls import FOLDER_FILES
from controlplane.common.whole_file import replace_file
from controlplane.planner.strategies.wan.site_rounds import NAME
from overlay.core.errors import OverlayError

FILE, LOCK = "joining.json", ".joining.lock"
UNIT = "token "
"""Beginning of the organisational unit in a certificate that was bought with a token; the token's ID follows."""

LIFETIME = timedelta(days=1)
"""Lifetime of a certificate. A site renews its certificate when half of it is over."""


@dataclass(frozen=True)
class Token:
    """One string that lets a site join.

    Attributes:
        number: the token's ID.
        secret: proof that the holder may join.
        digest: SHA-256 of the authority's certificate (DER), in hexadecimal digits.
    """

    number: str
    secret: str
    digest: str

    def __str__(self) -> str:
        return f"{self.number}.{self.secret}.{self.digest}"

    @classmethod
    def of(cls, text: str) -> Token:
        """Return the token in this text. Raise ValueError where the text is none."""
        parts = text.strip().split(".")
        if len(parts) != 3 or not all(parts) or len(parts[2]) != 64:
            raise ValueError("this is no token for joining: `inart site token` makes one, ID.SECRET.DIGEST")
        return cls(*parts)


def _hidden(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Joining:
    """The tokens of a folder of `inart certificates`, which has the authority's key.

    Args:
        folder: the folder.
        lifetime: lifetime of the certificates that are given out.
    """

    def __init__(self, folder: Path, lifetime: timedelta = LIFETIME) -> None:
        """Open the folder. Raise OverlayError when it has no authority that can sign."""
        place = folder / "authority"
        if not all((place / FOLDER_FILES[part]).is_file() for part in ("certificate", "key")):
            raise OverlayError(f"{folder} has no authority with its key: give the folder of `inart certificates`")
        try:
            self.authority = Authority.of(place, "", 1)
        except CertificatesError as error:
            raise OverlayError(str(error)) from None
        self._folder, self._lifetime = folder, lifetime
        self._seen: tuple[int, int] | None = None  # modification time and size of the file when it was read last
        self._valid: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """Digest by which a token's holder knows this authority."""
        return digest_of(self.authority.pem.decode())

    # --- for operators ---

    def make(self, name: str | None, life: timedelta, *, once: bool) -> Token:
        """Return a new token. Raise ValueError for a name that no site can have.

        Args:
            name: the only site that may join with the token; None for any site that has no certificate yet.
            life: how long the token can be used.
            once: whether only one site may use the token.
        """
        if name is not None:
            _check(name)
        token = Token(secrets.token_hex(4), secrets.token_urlsafe(24), self.digest)
        with self._changing() as tokens:
            tokens[token.number] = {"secret": _hidden(token.secret), "name": name, "once": once, "sites": [],
                                    "until": (now() + life).isoformat(), "revoked": False}  # fmt: skip
        return token

    def revoke(self, number: str) -> None:
        """Let no site join with this token from now on, nor with a certificate that was bought with it. Raise
        OverlayError where no token has this ID.
        """
        with self._changing() as tokens:
            if number not in tokens:
                raise OverlayError(f"there is no token {number} (there are: {', '.join(tokens) or 'none'})")
            tokens[number]["revoked"] = True

    def tokens(self) -> dict[str, dict[str, Any]]:
        """Return what is kept of each token, by its ID. Raise OverlayError when the file cannot be read."""
        file = self._folder / FILE
        try:
            found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else {}
        except (OSError, ValueError) as error:
            raise OverlayError(f"the tokens in {file} cannot be read: {error}") from None
        return found

    # --- for the coordinator ---

    def buy(self, text: str, site: str, request: bytes) -> bytes:
        """Return a certificate (PEM) for a site that has this token, for the key of its request. Raise OverlayError
        with the reason where the site gets none.
        """
        try:
            _check(site)
            token = Token.of(text)
        except ValueError as error:
            raise OverlayError(str(error)) from None
        with self._changing() as tokens:
            known = tokens.get(token.number)
            if known is None or not hmac.compare_digest(known["secret"], _hidden(token.secret)):
                raise OverlayError("the coordinator does not know this token")
            reason = self._why_not(token.number, known, site, tokens)
            if reason is not None:
                raise OverlayError(reason)
            made = self._signed(token.number, site, request)
            known["sites"] = sorted({*known["sites"], site})
        return made

    def renew(self, number: str, site: str, request: bytes) -> bytes:
        """Return the next certificate (PEM) of a site whose present one was bought with the token of this ID. Raise
        OverlayError where the token was revoked.
        """
        reason = self.refusal(number)
        if reason is not None:
            raise OverlayError(reason)
        return self._signed(number, site, request)

    def refusal(self, number: str) -> str | None:
        """Return why a certificate that was bought with this token does not hold any more; None where it does. The file
        is read only when it has changed: this is called for each message of a site.
        """
        try:
            status = (self._folder / FILE).stat()
            if (status.st_mtime_ns, status.st_size) != self._seen:
                self._valid = frozenset(key for key, each in self.tokens().items() if not each["revoked"])
                self._seen = status.st_mtime_ns, status.st_size
        except (OSError, OverlayError) as error:
            return f"the coordinator cannot read its tokens: {error}"
        if number not in self._valid:
            return f"token {number}, with which this certificate was bought, was revoked"
        return None

    def _why_not(
        self, number: str, known: Mapping[str, Any], site: str, tokens: Mapping[str, Mapping[str, Any]]
    ) -> str | None:
        """Return why a site may not use a token whose secret it has; None where it may."""
        if known["revoked"]:
            return f"token {number} was revoked"
        if datetime.fromisoformat(known["until"]) < now():
            return f"token {number} could be used until {known['until'][:16]} UTC: `inart site token` makes another one"
        if known["once"] and known["sites"]:
            return f"token {number} was for one site, and {known['sites'][0]} has joined with it"
        if known["name"] is not None:
            return None if known["name"] == site else f"token {number} is for {known['name']}, not for {site}"
        others = (other for key, other in tokens.items() if key != number and not other["revoked"])
        if (self._folder / "nodes" / site).exists() or any(site in (*each["sites"], each["name"]) for each in others):
            return f"another site has the name {site}: with a token for any name a site takes a new one"
        return None

    def _signed(self, number: str, site: str, request: bytes) -> bytes:
        try:
            return self.authority.answer(request, Caller("node", site), UNIT + number, self._lifetime)
        except CertificatesError as error:
            raise OverlayError(str(error)) from None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield all tokens to be changed, and write them when nothing is raised. No other process changes them
        meanwhile.
        """
        with (self._folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = self.tokens()
            yield tokens
            replace_file(self._folder / FILE, json.dumps(tokens, indent=1).encode(), 0o600)


def digest_of(pem: str) -> str:
    """Return the SHA-256 of a certificate (PEM), as tokens have it. Raise ValueError where it is no certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def _check(site: str) -> None:
    if not NAME.fullmatch(site) or not site.strip("."):
        raise ValueError(f"{site[:80]!r} is no name of a site: 1 to 64 letters, digits, dots, dashes or underscores")
