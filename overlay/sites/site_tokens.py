"""Makes, lists and revokes tokens in a folder of `inart certificates`, for sites that have no certificate."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from controlplane.common.access import (
    AUTHORITY_FOLDER,
    REVOKED_FILE,
    TOKENS_FILE,
    Caller,
    Revoked,
    add_revocations,
    issuer_of,
)
from controlplane.common.authority import begin_of_new
from controlplane.common.rpc.tls import FOLDER_FILES
from controlplane.common.tokens import ANY_NAME, Token, TokenFile
from controlplane.common.whole_file import replace_file
from controlplane.planner.strategies.wan.site_rounds import NAME
from overlay.core.errors import OverlayError

MAX_DAYS = 3650
"""Maximum lifetime of a token in days: ten years, as long as its authority is valid."""


class SiteTokens:
    """The tokens of a folder of `inart certificates`, and its credentials folder `controller` for the coordinator.

    Raises:
        OverlayError: the folder has no authority with its key, or no coordinator that asks for certificates.
    """

    def __init__(self, folder: Path) -> None:
        self._authority, self._own = folder / "authority", folder / "controller"
        try:
            issuer_of(self._authority)
        except ValueError:
            raise OverlayError(
                f"{folder} has no authority with its key: give the folder of `inart certificates`"
            ) from None
        if not all((self._own / FOLDER_FILES[part]).is_file() for part in ("authority", "certificate", "key")):
            raise OverlayError(
                f"{self._own} does not let in sites with certificates: make another folder with `inart certificates`, "
                "without --tokens"
            )
        self._file = TokenFile(self._own / TOKENS_FILE)

    def make(self, output: Path, name: str | None, days: float, *, once: bool) -> Token:
        """Make a token, and write it into a credentials folder for a site. Return the token.

        Args:
            output: the folder; made if it is missing.
            name: the only site that may use the token; None: a site of any name that no site has.
            days: its lifetime.
            once: whether it is exchanged for one certificate only.

        Raises:
            ValueError: no site can have the name, or the days are unusable.
            OverlayError: the folder has credentials.
        """
        if name is not None and (not NAME.fullmatch(name) or not name.strip(".")):
            raise ValueError(f"{name[:80]!r} is no name of a site: 1 to 64 letters, digits, dots, dashes, underscores")
        if not 0 < days <= MAX_DAYS:
            raise ValueError(f"--days is above 0 and at most {MAX_DAYS}, not {days:g}")
        there = [file for file in FOLDER_FILES.values() if (output / file).exists()]
        if there:
            raise OverlayError(f"{output} has {', '.join(there)} already: give a new folder")
        place = self._own / AUTHORITY_FOLDER
        if not place.exists():
            place.symlink_to(Path("..") / self._authority.name)
        until = datetime.now(UTC) + timedelta(days=days)
        token = Token(secrets.token_urlsafe(24), Caller("node", name or ANY_NAME), until, once)
        self._file.add(token)
        try:
            authority = (self._authority / FOLDER_FILES["certificate"]).read_bytes()
            replace_file(output / FOLDER_FILES["authority"], authority, 0o644)
            replace_file(output / FOLDER_FILES["token"], f"{token.secret}\n".encode())
            os.chmod(output, 0o700)
        except OSError:
            self._file.remove(token.number)
            raise
        return token

    def revoke(self, number: str) -> None:
        """Let no site join with the token of this ID from now on, and revoke the certificates of the sites that have
        exchanged it. Raise TokenError if there is none.
        """

        def revoke_certificates(token: Token) -> None:
            file = self._own / REVOKED_FILE
            holders, known = [Caller("node", name) for name in token.used], Revoked(file)
            # A certificate that was issued until now began no later than one that is issued now.
            add_revocations(file, {holder: begin_of_new(known, holder) for holder in holders})

        self._file.remove(number, revoke_certificates)

    def lines(self) -> Iterator[str]:
        """Yield a line in words for each token that sites may use."""
        for token in self._file.tokens():
            if token.caller.role == "node":
                name = "any name" if token.caller.name == ANY_NAME else token.caller.name
                until = "without end" if token.until is None else f"until {token.until:%Y-%m-%dT%H:%M} UTC"
                once = ", once" if token.once else ""
                yield f"{token.number}  for {name}, {until}{once}; used by {', '.join(token.used) or 'no site'}"
