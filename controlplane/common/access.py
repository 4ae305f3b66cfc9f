"""Access control of a controller: the roles that certificates and tokens prove, and what each role may do.

A certificate names its holder with a URI in its subject's alternative names, inart://ROLE/NAME, as `inart
certificates` makes it. A token file names holders that have no certificates.
"""

from __future__ import annotations

import datetime
import hashlib
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import grpc

from controlplane.common.rpc.tls import FOLDER_FILES
from controlplane.common.whole_file import replace_file

REVOKED_FILE = "revoked"
"""Name of the file of revoked certificates, beside the controller's certificate."""
TOKENS_FILE = "tokens"
"""Name of the token file (tokens.py) in the credentials folder of a controller or coordinator."""
AUTHORITY_FOLDER = "authority"
"""Name of the folder with an authority and its key in these credentials: it issues certificates."""
RENEWED_DAYS = 7.0
"""Days for which a certificate that a controller renews is valid."""
REVOKED_HEAD = "# inart://ROLE/NAME TIME: this holder's certificates whose validity began at TIME or before are revoked"


class Unreadable(ValueError):
    """The list cannot be used. Nobody with a certificate is let in then, since any certificate may be on it."""


SCHEME = "inart://"
CLIENT_ROLES = ("node", "operator", "tenant", "viewer")
ROLES = (*CLIENT_ROLES, "controller", "switch")
MAY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Join": (("node",), "join as an agent"),
    "Leave": (("node",), "speak for an agent"),
    "Report": (("node",), "speak for an agent"),
    "ReportUpdate": (("node",), "speak for an agent"),
    "Status": (CLIENT_ROLES, "see the status"),
    "Replan": (("operator",), "change a plan"),
    "AddJob": (("operator", "tenant"), "add a job"),
    "RemoveJob": (("operator", "tenant"), "remove a job"),
    "Log": (("operator",), "read the log"),
    "Reload": (("operator",), "reload the topology"),
    "Renew": (CLIENT_ROLES, "renew a certificate"),
}
"""The roles that may call each method of the service, and words for what it does. A node may speak only for itself, and
a tenant adds and removes only jobs of its own."""
# The shortest token that a file may have, in characters.
LEAST_TOKEN = 16


class Denied(Exception):
    """The caller may not do this. `code` is UNAUTHENTICATED where the caller is unknown, and PERMISSION_DENIED
    otherwise."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


class TokenError(ValueError):
    """A token file cannot be used; the message names the line and says what it should be."""


@dataclass(frozen=True)
class Caller:
    """A caller of the controller: its role, and the name of the node or of the person."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    @property
    def uri(self) -> str:
        """The URI that names the caller in a certificate."""
        return f"{SCHEME}{self.role}/{quote(self.name, safe='')}"


def parse_uri(uri: str) -> Caller | None:
    """Return the caller that a certificate's URI names, or None if the URI has another form."""
    role, slash, name = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or role not in ROLES or not slash or not name or "/" in name:
        return None
    return Caller(role, unquote(name))


class Revoked:
    """The revocations in a file, which may be missing. Thread-safe.

    A revocation names a holder and a time: it concerns all certificates of this holder whose validity began by then.
    Serial numbers would not do, because the controller renews certificates: their successors have other numbers, but
    the same begin (`Authority.next_of`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._until: dict[Caller, datetime.datetime] = {}

    def until(self, caller: Caller) -> datetime.datetime | None:
        """Return the latest begin of the caller's revoked certificates; None if none is revoked. Raise Unreadable if
        the file cannot be used."""
        with self._lock:
            try:
                status = self.path.stat()
                if (status.st_mtime_ns, status.st_size) != self._seen:
                    self._until = parse_revocations(self.path.read_text())
                    self._seen = status.st_mtime_ns, status.st_size
            except FileNotFoundError:
                self._seen, self._until = None, {}
            except (OSError, ValueError) as error:
                raise Unreadable(f"the list of revoked certificates {self.path} cannot be used: {error}") from None
            return self._until.get(caller)


def parse_revocations(text: str) -> dict[Caller, datetime.datetime]:
    """Return the latest time by holder in a list with one line `inart://ROLE/NAME TIME` per revocation; # begins a
    comment. Raise ValueError, which names the line, if a line has another form."""
    found: dict[Caller, datetime.datetime] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        caller = parse_uri(words[0])
        try:
            time = datetime.datetime.fromisoformat(words[1]) if len(words) == 2 else None
        except ValueError:
            time = None
        if caller is None or time is None or time.tzinfo is None:
            raise ValueError(
                f"line {number}: {' '.join(words)[:100]!r} is not inart://ROLE/NAME TIME, as `inart certificates "
                "--revoke` writes it: revoke that certificate again, and remove the line"
            )
        found[caller] = max(time, found.get(caller, time))
    return found


def add_revocations(path: Path, untils: Mapping[Caller, datetime.datetime]) -> list[str]:
    """Add a revocation per holder to a list, until this time or the one that the list has, if that is later. Return the
    lines. Raise OSError or ValueError if the file cannot be used.
    """
    text = path.read_text() if path.is_file() else f"{REVOKED_HEAD}\n"
    known = parse_revocations(text)
    new = [f"{each.uri} {max(time, known.get(each, time)):%Y-%m-%dT%H:%M:%SZ}" for each, time in untils.items()]
    uris = {each.uri for each in untils}
    kept = [line for line in text.splitlines() if not uris.intersection(line.split()[:1])]
    replace_file(path, ("\n".join([*kept, *new]) + "\n").encode(), 0o644)
    return new


Issuer = Callable[[Caller, datetime.datetime], tuple[bytes, bytes]]
"""Makes the certificate of a caller, whose validity began at a time, and its key (PEM)."""


def issuer_of(folder: Path, days: float = RENEWED_DAYS) -> Issuer:
    """Return the issuer of an authority's folder. Raise ValueError if the folder has no authority with its key."""
    from controlplane.common.authority import Authority, CertificatesError  # here: not all machines have its library

    if not (folder / FOLDER_FILES["key"]).is_file() or not (folder / FOLDER_FILES["certificate"]).is_file():
        raise ValueError(
            f"{folder} is no authority with its key: copy the folder `authority` of `inart certificates` there, or "
            "remove it, and no certificate is renewed"
        )
    try:
        return Authority.of(folder, "", days).next_of
    except CertificatesError as error:
        raise ValueError(str(error)) from None


class Access:
    """The callers that a controller or a coordinator knows. Without certificates and tokens, everybody who reaches it
    may do everything.

    Args:
        certificates: the server demands certificates of its clients.
        issuer: makes a caller's next certificate, given when the validity of the present one began; None if this
            process issues none.
    """

    def __init__(
        self,
        tokens: Mapping[str, Caller] | None = None,
        *,
        certificates: bool = False,
        revoked: Revoked | None = None,
        issuer: Issuer | None = None,
    ) -> None:
        self._revoked = revoked
        self.issuer = issuer
        self._tokens = {_digest(token): caller for token, caller in (tokens or {}).items()}
        self._certificates = certificates

    @property
    def restricted(self) -> bool:
        return self._certificates or bool(self._tokens)

    @property
    def tokens(self) -> bool:
        """Whether the controller accepts tokens."""
        return bool(self._tokens)

    def caller(self, context: grpc.ServicerContext) -> Caller | None:
        """Return the caller, or None where access is not restricted. Raise Denied where the caller is unknown."""
        if not self.restricted:
            return None
        found = context.auth_context()
        metadata = dict(context.invocation_metadata() or ())
        if "x509_pem_cert" in found:
            caller = _of_certificate(found)
            self.check_revoked(caller, lambda: certificate_began(found))
            return caller
        return self.of_token(str(metadata.get("authorization", "")).removeprefix("Bearer "))

    def check_revoked(self, caller: Caller, began: Callable[[], datetime.datetime]) -> None:
        """Check that the caller's certificate, whose validity began then, was not revoked. Raise Denied if it was, or
        if that is unknown."""
        if self._revoked is None:
            return
        try:
            until = self._revoked.until(caller)
        except Unreadable as error:
            raise Denied(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        if until is not None and began() <= until:
            raise Denied(
                grpc.StatusCode.UNAUTHENTICATED,
                f"this certificate of {caller} was revoked: whoever is to come in needs a new one "
                "(inart certificates --renew)",
            )

    def of_token(self, token: str) -> Caller:
        """Return the caller with this token. Raise Denied where there is none."""
        if not token:
            what = "its own certificate or its token" if self._certificates else "its token, in its credentials folder"
            raise Denied(grpc.StatusCode.UNAUTHENTICATED, f"who is this? This controller wants {what}")
        caller = self._tokens.get(_digest(token))
        if caller is None:
            raise Denied(grpc.StatusCode.UNAUTHENTICATED, "the controller does not know this token")
        return caller

    def check(self, method: str, context: grpc.ServicerContext) -> Caller | None:
        """Return the caller, if it may call `method` ("Join"). Raise Denied where it may not."""
        caller = self.caller(context)
        roles, what = MAY[method]
        if caller is not None and caller.role not in roles:
            allowed = " or ".join(f"{'an' if role[0] in 'aeiou' else 'a'} {role}" for role in roles)
            raise Denied(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller} may not {what}: that takes the certificate or token of {allowed}",
            )
        return caller


def _of_certificate(found: Mapping[str, Any]) -> Caller:
    uris = [uri.decode(errors="replace") for uri in found.get("peer_uri", ())]
    callers = [caller for caller in map(parse_uri, uris) if caller is not None]
    if len(callers) != 1:
        subject = b", ".join(found.get("x509_subject", [b"no subject"])).decode(errors="replace")
        raise Denied(
            grpc.StatusCode.UNAUTHENTICATED,
            f"the certificate ({subject}) does not say whose it is: it needs one URI inart://node/NAME or "
            "inart://operator/NAME among its alternative names, as `inart certificates` makes it",
        )
    return callers[0]


def certificate_began(found: Mapping[str, Any]) -> datetime.datetime:
    """Return when the validity of the certificate in gRPC's context of a caller began."""
    from cryptography import x509  # here: a machine with an agent alone may not have it

    return x509.load_pem_x509_certificate(found["x509_pem_cert"][0]).not_valid_before_utc


def peer_began(certificate: Mapping[str, Any]) -> datetime.datetime:
    """Return when the validity of a certificate began, as Python's `getpeercert` gives it."""
    return datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notBefore"]), datetime.UTC)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
