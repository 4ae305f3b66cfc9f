"""Token files: tokens with which callers are known, or that nodes exchange for a certificate.

A line is `TOKEN ROLE NAME`, with conditions behind it; # begins a comment:

    ab3.. operator alice                                      known as alice, for as long as the line is there
    7Kx.. node osaka until=2026-12-01T10:00                   exchanged by osaka for a certificate, until then (UTC)
    Qe9.. node * until=2026-12-01T10:00 once                  exchanged once, under any name that no node has
    Zr1.. node * until=2026-12-01T10:00 used=osaka,bergen     the names of the nodes that have exchanged it

A token with a condition, or for any name, is good for an exchange only: it does not make its holder a known caller.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import grpc

from controlplane.common.access import CLIENT_ROLES, LEAST_TOKEN, Caller, Denied, TokenError
from controlplane.common.whole_file import replace_file

ANY_NAME = "*"
HEAD = "# TOKEN ROLE NAME"
LOCK_FILE = ".tokens.lock"


@dataclass(frozen=True)
class Token:
    """A line of a token file.

    Attributes:
        secret: the token.
        caller: its holder; the name may be ANY_NAME.
        until: when it expires; None: never.
        once: whether it is exchanged for one certificate only.
        used: names of the nodes that have exchanged it.
    """

    secret: str
    caller: Caller
    until: datetime | None = None
    once: bool = False
    used: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """The token's ID, 16 hexadecimal digits, which does not reveal the token."""
        return hashlib.sha256(self.secret.encode(errors="surrogatepass")).hexdigest()[:16]

    @property
    def makes_known(self) -> bool:
        """Whether the holder is a known caller by the token itself."""
        return self.caller.name != ANY_NAME and self.until is None and not self.once

    def __str__(self) -> str:
        words = [self.secret, self.caller.role, self.caller.name]
        if self.until is not None:
            words.append(f"until={self.until:%Y-%m-%dT%H:%M}")
        if self.once:
            words.append("once")
        if self.used:
            words.append(f"used={','.join(self.used)}")
        return " ".join(words)


def _parsed(words: list[str], where: str) -> Token:
    """Return the token of a line. Raise TokenError for a line that is not well formed."""
    if len(words) < 3 or words[1] not in CLIENT_ROLES:
        raise TokenError(f"{where}: TOKEN ROLE NAME is wanted, ROLE being {', '.join(CLIENT_ROLES)}")
    secret, role, name = words[:3]
    if len(secret) < LEAST_TOKEN:
        raise TokenError(f"{where}: the token has fewer than {LEAST_TOKEN} characters")
    token = Token(secret, Caller(role, name))
    for word in words[3:]:
        key, _, value = word.partition("=")
        try:
            if word == "once":
                token = replace(token, once=True)
            elif key == "until":
                token = replace(token, until=datetime.fromisoformat(value).replace(tzinfo=UTC))
            elif key == "used" and value:
                token = replace(token, used=tuple(value.split(",")))
            else:
                raise ValueError(word)
        except ValueError:
            wanted = "behind the name stand until=2026-12-01T10:00, once and used=NAME,.. only"
            raise TokenError(f"{where}: {wanted}, not {word!r}") from None
    if role != "node" and not token.makes_known:
        raise TokenError(f"{where}: only nodes exchange tokens, and {role} {name} has conditions")
    return token


class TokenFile:
    """A token file, which is read each time: other processes may change it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tokens(self) -> tuple[Token, ...]:
        """Return the file's tokens; none if there is no file. Raise TokenError if the file cannot be used."""
        return tuple(self._read()[1].values())

    def add(self, *tokens: Token) -> None:
        """Add these tokens. Raise TokenError or OSError where that fails."""
        with self._changing() as (lines, _):
            lines += [str(token) for token in tokens]

    def remove(self, number: str, before: Callable[[Token], object] = lambda token: None) -> None:
        """Remove the token of this ID. `before` is called with it first, while no process can exchange it. Raise
        TokenError if there is none, and what `before` raises.
        """
        with self._changing() as (lines, known):
            for k, token in known.items():
                if token.number == number:
                    before(token)
                    del lines[k]
                    return
        there = ", ".join(token.number for token in known.values()) or "none"
        raise TokenError(f"there is no token {number} in {self.path} (there are: {there})")

    def claim(self, secret: str, name: str, taken: Callable[[str], bool]) -> Token:
        """Return the token with which the node of this name may have a certificate, and record the use. Raise Denied
        with the reason if the node may not, and TokenError or OSError if the file cannot be used.

        Args:
            secret: the token.
            name: the node's name.
            taken: returns whether a node that has no token has a name.
        """
        with self._changing() as (lines, known):
            found = [(k, token) for k, token in known.items() if token.secret == secret]
            if not found or found[0][1].caller.role != "node":
                raise _denied("this token is not known here; it may have been revoked")
            ((k, token),) = found
            others = [other for other in known.values() if other is not token]
            reason = _refusal(token, name, others, taken)
            if reason is not None:
                raise _denied(f"token {token.number} {reason}")
            if name not in token.used:
                token = replace(token, used=(*token.used, name))
                lines[k] = str(token)
            return token

    def _read(self) -> tuple[list[str], dict[int, Token]]:
        """Return the file's lines, and the tokens by the numbers of their lines."""
        path = self.path
        try:
            if not path.exists():
                return [HEAD], {}
            if path.stat().st_mode & 0o077:
                raise TokenError(f"token file {path} can be read by others: chmod 600 {path}")
            lines = path.read_text().splitlines()
        except OSError as error:
            raise TokenError(f"cannot read token file {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TokenError(f"token file {path} is not text") from None
        known: dict[int, Token] = {}
        for k, line in enumerate(lines):
            words = line.partition("#")[0].split()
            if not words:
                continue
            where = f"token file {path}, line {k + 1}"
            token = _parsed(words, where)
            same = next((other for other in known.values() if other.secret == token.secret), None)
            if same is not None:
                raise TokenError(f"{where}: the same token as {same.caller}")
            known[k] = token
        return lines, known

    @contextmanager
    def _changing(self) -> Iterator[tuple[list[str], dict[int, Token]]]:
        """Yield the lines and the tokens, and write the lines if they were changed. No other process changes them
        meanwhile.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (self.path.parent / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines, known = self._read()
            before = list(lines)
            yield lines, known
            if lines != before:
                replace_file(self.path, ("\n".join(lines) + "\n").encode(), 0o600)


def _denied(words: str) -> Denied:
    return Denied(grpc.StatusCode.UNAUTHENTICATED, words)


def _refusal(token: Token, name: str, others: list[Token], taken: Callable[[str], bool]) -> str | None:
    """Return why a node may not exchange a token that it has; None if it may. `others` are the other tokens."""
    if token.until is not None and token.until < datetime.now(UTC):
        return f"could be used until {token.until:%Y-%m-%d %H:%M} UTC: `inart site token` makes another one"
    if token.once and token.used:
        return f"was for one certificate, which {token.used[0]} has"
    if token.caller.name != ANY_NAME:
        return None if token.caller.name == name else f"is for {token.caller.name}, not for {name}"
    if name not in token.used and (taken(name) or any(name in (other.caller.name, *other.used) for other in others)):
        return f"is for a new name, and another node has the name {name}"
    return None


def load_tokens(path: Path) -> dict[str, Caller]:
    """Return the callers that are known by a token in this file. Raise TokenError if there is none, or if the file
    cannot be used.
    """
    found = {token.secret: token.caller for token in TokenFile(path).tokens() if token.makes_known}
    if not found:
        raise TokenError(f"token file {path} has no token without conditions")
    return found
