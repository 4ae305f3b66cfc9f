"""Makes a private authority, and certificates for all members of a network, to try TLS and access control with.

    inart certificates --folder DIR --controller 10.0.0.1 --topology net.json --operators alice --switches switches.json
    inart serve ... --credentials DIR/controller --switches DIR/switches.json
    inart ps --controller 10.0.0.1:9600 --credentials DIR/nodes/S1
    inart status --controller 10.0.0.1:9600 --credentials DIR/operators/alice

Existing files stay, so it can run again for new nodes. To renew certificates before they expire:

    inart certificates --folder DIR --renew S1 alice controller        (or: --renew all)

Running processes load the new files without a restart. See docs/deploy.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import secrets
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from controlplane.common import command_line
from controlplane.common.access import REVOKED_FILE, TOKENS_FILE, Caller, Revoked, add_revocations
from controlplane.common.authority import (
    CLIENT,
    DAYS,
    MOST_DAYS,
    PREDATED,
    SERVER,
    Authority,
    CertificatesError,
    begin_of_new,
    now,
)
from controlplane.common.rpc.tls import CONTROLLER_NAME, FOLDER_FILES, switch_name
from controlplane.common.tokens import Token, TokenFile
from controlplane.common.whole_file import replace_file

BROWSER_FILE = "browser.p12"
"""The file with key and certificate, in PKCS #12, that operators and viewers import into a browser."""


@dataclass(frozen=True)
class Wanted:
    """A description of who gets certificates.

    Attributes:
        controller: Addresses and host names at which clients reach the controller.
        switches: By address ("host:port"), the names of the switches that listen there.
    """

    controller: Sequence[str] = ()
    nodes: Sequence[str] = ()
    operators: Sequence[str] = ()
    viewers: Sequence[str] = ()
    tenants: Sequence[str] = ()
    switches: Sequence[tuple[str, Sequence[str]]] = ()


def make(folder: Path, wanted: Wanted, days: int = DAYS, *, tokens: bool = False) -> list[Path]:
    """Make the certificates that are missing, and return the folders that were made. Raise CertificatesError or OSError
    where that fails.

    With `tokens`, nodes, operators, viewers and tenants get tokens instead of certificates, and the controller asks for
    certificates (`authority.pem`) only if there are any. There are two authorities, so that agents and operators cannot
    pass for the controller at a switch, nor a switch for the controller.
    """
    _check_names(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    authority = Authority.of(folder / "authority", "agents, operators, controller", days)
    made = []
    own = folder / "controller"
    names = (CONTROLLER_NAME, "localhost", "127.0.0.1", *wanted.controller)
    if authority.issue(own, Caller("controller", "controller"), (SERVER, CLIENT), list(dict.fromkeys(names))):
        made.append(own)
    given = {}
    revoked = Revoked(own / REVOKED_FILE)
    roles = {"node": wanted.nodes, "operator": wanted.operators, "viewer": wanted.viewers, "tenant": wanted.tenants}
    for role, people in roles.items():
        for name in people:
            where, caller = folder / f"{role}s" / name, Caller(role, name)
            if tokens:
                if not (where / "token").is_file():
                    given[secrets.token_urlsafe(24)] = caller
                    made.append(where)
            elif authority.issue(
                where, caller, (CLIENT, SERVER) if role == "node" else (CLIENT,), begin=begin_of_new(revoked, caller)
            ):
                # Nodes are servers to each other in a WAN (overlay/), so their certificates name them for clients to
                # check.
                made.append(where)
            if role != "node" and not tokens:
                _write_browser_file(where, authority)
    _write_tokens(folder, given, authority)
    shown = (file for place in CLIENT_PLACES for file in (folder / place).glob(f"*/{FOLDER_FILES['certificate']}"))
    if tokens and next(shown, None) is None:
        (own / FOLDER_FILES["authority"]).unlink(missing_ok=True)
    elif not (own / FOLDER_FILES["authority"]).is_file():
        replace_file(own / FOLDER_FILES["authority"], authority.pem, 0o644)
    if wanted.switches:
        made += _make_switches(folder, wanted, days)
    return made


def _make_switches(folder: Path, wanted: Wanted, days: int) -> list[Path]:
    authority = Authority.of(folder / "switch-authority", "switches and their controller", days)
    made = []
    own = folder / "controller-of-switches"
    if authority.issue(own, Caller("controller", "controller"), (CLIENT,)):
        made.append(own)
    for address, switches in wanted.switches:
        where = folder / "switches" / switches[0]
        host = address.rpartition(":")[0].strip("[]")
        names = [*(switch_name(switch) for switch in switches), host]
        if authority.issue(where, Caller("switch", switches[0]), (SERVER,), names):
            made.append(where)
    return made


# Folders whose certificates the switches' authority signs; the other authority signs all others.
OF_SWITCHES = ("controller-of-switches", "switches")
# Folders with one subfolder per name.
PLACES = ("nodes", "operators", "viewers", "tenants", "switches")
CLIENT_PLACES = PLACES[:4]
OF_NEW_ONES = ("tokens", "nodes", "topology", "switches", "viewers", "tenants")
"""Options that say who gets a new certificate, and mean nothing where existing ones are renewed."""


def renew(
    folder: Path,
    names: Sequence[str],
    controller: Sequence[str] = (),
    days: int = DAYS,
    within: int | None = None,
) -> list[Path]:
    """Renew existing certificates, all of those named or, on an error, none; return their folders. Raise
    CertificatesError or OSError where that fails.

    A revoked certificate is renewed only by its name and without `within`, never by a timer.

    Args:
        names: "S1", "nodes/S1", "controller", or "all".
        controller: Addresses that the controller's certificate also names from now on.
        within: Renew only those that expire within so many days; None for all.
    """
    there = _there(folder)
    revoked = Revoked(folder / "controller" / REVOKED_FILE)
    late = None if within is None else now() + datetime.timedelta(days=within)
    chosen: dict[Path, Authority] = {}
    for name in names:
        found = [one for one in there if name in ("all", one.name, one.relative_to(folder).as_posix())]
        if not found:
            known = ", ".join(one.relative_to(folder).as_posix() for one in there) or "none"
            raise CertificatesError(f"there is no certificate of {name!r} in {folder} (there are: {known})")
        if len(found) > 1 and name != "all":
            several = ", ".join(one.relative_to(folder).as_posix() for one in found)
            raise CertificatesError(f"{name!r} could be {several}: say which")
        for one in found:
            own = "switch-authority" if one.relative_to(folder).parts[0] in OF_SWITCHES else "authority"
            if not (folder / own / FOLDER_FILES["key"]).is_file():
                raise CertificatesError(f"{folder / own} has no key: only where the authority is can it sign")
            if (name == "all" or late is not None) and _is_revoked(revoked, one):
                continue
            if late is None or _end(one) <= late:
                chosen[one] = Authority.of(folder / own, "", days)
    for one, authority in chosen.items():
        authority.renew(one, controller if one == folder / "controller" else (), begin_of_new(revoked, _holder(one)))
        if (one / BROWSER_FILE).is_file():
            (one / BROWSER_FILE).unlink()
            _write_browser_file(one, authority)
    return list(chosen)


def revoke(folder: Path, names: Sequence[str]) -> list[tuple[Path, str]]:
    """Put the certificates of these nodes, operators, viewers and tenants on the list beside the controller's. Return
    their folders, and the name of each on the list. Raise CertificatesError or OSError where that fails."""
    chosen: dict[Path, Caller] = {}
    untils: dict[Caller, datetime.datetime] = {}
    for name in names:
        found = [one for one in _there(folder) if name in (one.name, one.relative_to(folder).as_posix())]
        if len(found) != 1 or found[0].relative_to(folder).parts[0] not in CLIENT_PLACES:
            what = (
                "is several: say which, like nodes/S1"
                if len(found) > 1
                else "is no node, operator, viewer or tenant here"
            )
            raise CertificatesError(f"--revoke {name}: {name} {what}")
        holder = chosen[found[0]] = _holder(found[0])
        # All of the holder's certificates were made before now, or by a clock that was ahead of ours.
        untils[holder] = max(now() - PREDATED, _certificate(found[0]).not_valid_before_utc)
    lines = add_revocations(folder / "controller" / REVOKED_FILE, untils)
    return list(zip(chosen, lines, strict=True))


def _holder(folder: Path) -> Caller:
    """Return the holder of the certificate in a folder such as DIR/nodes/S1."""
    return Caller(folder.parent.name.removesuffix("s"), folder.name)


def _is_revoked(revoked: Revoked, folder: Path) -> bool:
    until = revoked.until(_holder(folder))
    return until is not None and _certificate(folder).not_valid_before_utc <= until


def _write_browser_file(where: Path, authority: Authority) -> None:
    """Write certificate and key as the PKCS #12 file that a browser imports to show the controller's page.

    It has no password: the same key lies unencrypted beside it.
    """
    file = where / BROWSER_FILE
    if file.is_file():
        return
    certificate = _certificate(where)
    key = serialization.load_pem_private_key((where / FOLDER_FILES["key"]).read_bytes(), password=None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        name = f"inart {where.name}".encode()
        bundle = pkcs12.serialize_key_and_certificates(
            name, key, certificate, [authority.certificate], serialization.NoEncryption()
        )
        replace_file(file, bundle, 0o600)


def _write_tokens(folder: Path, given: dict[str, Caller], authority: Authority) -> None:
    if not given:
        return
    for token, caller in given.items():
        where = folder / f"{caller.role}s" / caller.name
        replace_file(where / FOLDER_FILES["authority"], authority.pem, 0o644)
        replace_file(where / FOLDER_FILES["token"], f"{token}\n".encode(), 0o600)
    TokenFile(folder / "controller" / TOKENS_FILE).add(*(Token(token, caller) for token, caller in given.items()))


def _check_names(wanted: Wanted) -> None:
    switches = [name for _, names in wanted.switches for name in names]
    for name in (*wanted.nodes, *wanted.operators, *wanted.viewers, *wanted.tenants, *switches):
        if not name or name in (".", "..") or any(letter in name for letter in "/\0") or len(name.split()) != 1:
            raise CertificatesError(f"{name!r} cannot be a name here: no /, no blanks")
    if len({name.lower() for name in switches}) < len(switches):
        raise CertificatesError("two switches differ in upper and lower case only: their certificates could not")


def write_switches(folder: Path, source: Path) -> Path:
    """Write a copy of the switches file, with the TLS files of each switch, into `folder`, and return its path."""
    data = json.loads(source.read_text())
    own = folder / "controller-of-switches"
    tls = {part: os.path.relpath(own / FOLDER_FILES[part], folder) for part in ("authority", "certificate", "key")}
    file = folder / "switches.json"
    replace_file(
        file, json.dumps({name: {**entry, "tls": tls} for name, entry in data.items()}, indent=2).encode(), 0o644
    )
    return file


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("certificates", __doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="folder for the files; keep it private"
    )
    parser.add_argument(
        "--controller", type=_names, default=(), metavar="ADDRESS,...", help="addresses of the controller"
    )
    parser.add_argument("--nodes", type=_names, default=(), metavar="NAME,...", help="servers that get a certificate")
    parser.add_argument("--topology", metavar="T", help="a certificate for each of its servers (file, or fattree:k=4)")
    parser.add_argument(
        "--operators", type=_names, default=("operator",), metavar="NAME,...", help="people who may change things"
    )
    parser.add_argument(
        "--tenants", type=_names, default=(), metavar="NAME,...", help="those who may add and remove jobs of their own"
    )
    parser.add_argument("--viewers", type=_names, default=(), metavar="NAME,...", help="people who may only look")
    parser.add_argument(
        "--switches", type=Path, metavar="FILE", help="switches file: a certificate for each address in it"
    )
    parser.add_argument(
        "--renew", nargs="+", metavar="NAME",
        help="renew these certificates (S1, nodes/S1, controller, or all), and do nothing else",
    )  # fmt: skip
    parser.add_argument(
        "--within",
        type=int,
        metavar="DAYS",
        help="with --renew: only those that expire within so many days (for a timer)",
    )
    parser.add_argument(
        "--revoke", nargs="+", metavar="NAME",
        help="make all their certificates of now invalid, also renewed ones; --renew NAME makes new ones",
    )  # fmt: skip
    parser.add_argument("--tokens", action="store_true", help="make tokens for nodes and people, not certificates")
    parser.add_argument(
        "--days", type=int, default=DAYS, metavar="N", help="days that certificates are valid (%(default)s)"
    )
    command_line.add_json(parser, "print the certificates in the folder, and until when they hold, as JSON")
    return parser


def _certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / FOLDER_FILES["certificate"]).read_bytes())


def _end(folder: Path) -> datetime.datetime:
    return _certificate(folder).not_valid_after_utc


def _until(folder: Path) -> str:
    return f"until {_end(folder):%Y-%m-%d}"


def _there(folder: Path) -> list[Path]:
    """Return the folders of the certificates that exist and can be renewed."""
    places = ["controller", "controller-of-switches", *(f"{place}/*" for place in PLACES)]
    return [file.parent for place in places for file in sorted(folder.glob(f"{place}/{FOLDER_FILES['certificate']}"))]


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Run the command and return the lines to print. Raise CertificatesError, ValueError or OSError where it fails."""
    if not 1 <= arguments.days <= MOST_DAYS:
        raise CertificatesError(f"--days must be at least 1, and at most {MOST_DAYS}")
    if arguments.within is not None and not 0 <= arguments.within <= MOST_DAYS:
        raise CertificatesError(f"--within must be at least 0, and at most {MOST_DAYS}")
    if arguments.within is not None and arguments.renew is None:
        raise CertificatesError("--within goes with --renew")
    if arguments.revoke is not None:
        for one, words in revoke(arguments.folder, arguments.revoke):
            yield f"{one}: revoked ({words})"
        where = arguments.folder / "controller" / REVOKED_FILE
        yield f"copy {where} to where the controller's files are; it looks by itself"
        return
    if arguments.renew is not None:
        if any(getattr(arguments, name) for name in OF_NEW_ONES):
            raise CertificatesError(
                "--renew only replaces existing certificates: no --nodes, --topology, --switches or --tokens"
            )
        done = renew(arguments.folder, arguments.renew, arguments.controller, arguments.days, arguments.within)
        for one in done:
            yield f"{one}: renewed, {_until(one)}"
        if not done:
            yield f"none of them ends within {arguments.within} days (revoked ones are not renewed)"
            return
        yield "copy them to where they are used; who runs takes them at his next connection, without a restart"
        return
    nodes = list(arguments.nodes)
    if arguments.topology is not None:
        from controlplane.planner.generators import parse_topology

        nodes += [server for server in parse_topology(arguments.topology).servers if server not in nodes]
    by_address: dict[str, list[str]] = {}
    if arguments.switches is not None:
        from controlplane.targets.switches_file import SwitchesFileError, load_switches

        try:
            for switch in load_switches(arguments.switches).values():
                by_address.setdefault(switch.address, []).append(switch.name)
        except SwitchesFileError as error:
            raise CertificatesError(str(error)) from None
    switches = list(by_address.items())
    wanted = Wanted(arguments.controller, nodes, arguments.operators, arguments.viewers, arguments.tenants, switches)
    made = make(arguments.folder, wanted, arguments.days, tokens=arguments.tokens)
    yield f"{len(made)} made in {arguments.folder}, for {arguments.days} days; what was there stays"
    own = arguments.folder / "controller"
    both = all((own / name).is_file() for name in (TOKENS_FILE, FOLDER_FILES["authority"]))
    yield f"controller:  --credentials {own}" + ", and tokens_listen in --config (for those with tokens)" * both
    if by_address:
        yield f"its switches: --switches {write_switches(arguments.folder, arguments.switches)}"
        yield f"a switch:    the files of {arguments.folder / 'switches'}/NAME (docs/deploy.md)"
    yield f"an agent:    --credentials {arguments.folder / 'nodes'}/NAME"
    yield f"an operator: --credentials {arguments.folder / 'operators'}/NAME"
    if not arguments.tokens:
        yield f"a browser:   import {BROWSER_FILE} of an operator or a viewer (no password), for the page (--web)"
    yield f"keep {arguments.folder / 'authority'}/key.pem: who has it can make more"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)

    def work() -> None:
        lines = list(run(arguments))
        if arguments.json:
            folder = arguments.folder
            until = {one.relative_to(folder).as_posix(): _end(one).isoformat() for one in _there(folder)}
            lines = [json.dumps({"folder": str(folder), "until": until})]
        print("\n".join(lines))

    return command_line.run("certificates", work, (ValueError, OSError))


if __name__ == "__main__":
    sys.exit(main())
