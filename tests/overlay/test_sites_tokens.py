"""Sites that join with tokens (docs/sites.md): real processes, and each reason for which one is refused."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

from controlplane.cli.certificates import Wanted, make
from controlplane.cli.certificates import main as certificates
from controlplane.common.access import Caller, Denied, TokenError
from controlplane.common.rpc import renewal
from controlplane.common.rpc.tls import credentials
from controlplane.common.tokens import Token, TokenFile, load_tokens
from inart.command import main
from overlay.core.errors import OverlayError
from overlay.net.admission import Admission
from overlay.net.tls import Security
from overlay.sites import enrolment, init
from overlay.sites.enrolment import enrol
from overlay.sites.site_tokens import SiteTokens
from tests.overlay.test_agents import until
from tests.overlay.test_sites import coordinating
from tests.overlay.test_sites_elastic import state

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
HOUR = timedelta(hours=1)


SCRIPT = """
import time
import numpy as np
import inart.sites

def state(number):
    return np.full(100, number % 256, np.uint8)

group = inart.sites.init(timeout=60.0)
number, all_three = group.agree(state(0), 0).round, 0
while all_three < 2:
    time.sleep(0.05)  # It trains.
    try:
        found = group.average(np.ones(100, np.float32), round=number)
    except inart.sites.Behind:
        number = group.agree(state(number), number).round
        continue
    number += 1
    group.offer(state(number), number)
    all_three += len(found.sites) == 3
    print(f"round {number} with {', '.join(found.sites)}", flush=True)
group.close()
"""
"""Takes part in rounds until two of them were of three sites; without PyTorch, which takes seconds to import."""


@pytest.fixture
def folder(tmp_path) -> Path:
    where = tmp_path / "secrets"
    make(where, Wanted(nodes=("paris",)))
    return where


@contextmanager
def taking_tokens(folder: Path):
    """Start a coordinator with this folder; returns (it, where it listens, the folder's tokens, its log)."""
    tokens = SiteTokens(folder)
    tokens.make(folder / "first", None, 1.0, once=False)
    own = folder / "controller"
    security = Security.of(credentials(own), Admission(own))
    with coordinating(1, security, probe_seconds=0) as (coordinator, lines):
        yield coordinator, coordinator.address[1], tokens, lines


def exchanged(port: int, site: str, folder: Path) -> Path:
    enrol(("127.0.0.1", port), site, folder)
    return folder


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "certificate.pem").read_bytes()).serial_number


@pytest.mark.timeout(400)
def test_an_unknown_name_joins_in_the_middle_of_training(folder, tmp_path, capsys):
    """Real processes: one site has a certificate, the second one a token for its name, a third one comes later."""
    for name, words in (("osaka", []), ("tokyo", ["--site", "tokyo", "--once"])):
        assert main(["site", "token", "--folder", str(folder), "--output", str(tmp_path / name), *words]) == 0
        assert f"is in {tmp_path / name}: copy this folder to the site" in capsys.readouterr().out
        assert (tmp_path / name).stat().st_mode & 0o077 == (tmp_path / name / "token").stat().st_mode & 0o077 == 0
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = {key: value for key, value in os.environ.items() if not key.startswith("INART_")}
    common |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:

        def begin(*words: str, **more: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "inart", "site", *words]
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=common | more, cwd=tmp_path)
            )
            stack.callback(process.kill)
            return process

        secrets = ["--credentials", str(folder / "controller")]
        config = tmp_path / "site.toml"
        config.write_text("[sites]\nprobe_seconds = 0\n")
        coordinator = begin("coordinator", "--sites", "2", "--listen", "127.0.0.1:0", "--config", str(config), *secrets)
        assert coordinator.stdout is not None
        where = coordinator.stdout.readline().split()[5].rstrip(";")

        def site(name: str, *words: str, **more: str) -> subprocess.Popen[str]:
            run = ["run", "--coordinator", where, "--site", name, "--listen", "127.0.0.1:0", *words]
            return begin(*run, "--", sys.executable, str(script), **more)

        sites = {"paris": site("paris", "--credentials", str(folder / "nodes" / "paris")),
                 "tokyo": site("tokyo", INART_CREDENTIALS=str(tmp_path / "tokyo"))}  # fmt: skip
        first = sites["paris"].stdout
        assert first is not None and first.readline() == "round 1 with paris, tokyo\n"
        sites["osaka"] = site("osaka", "--credentials", str(tmp_path / "osaka"))
        for name, process in sites.items():
            lines = process.communicate(timeout=SECONDS)[0].splitlines()
            assert process.returncode == 0, name
            assert lines[-1].endswith("with osaka, paris, tokyo"), name
        assert main(["site", "token", "--folder", str(folder), "--list"]) == 0
        listed = capsys.readouterr().out
        assert "for any name" in listed and "used by osaka" in listed and "used by tokyo" in listed
        assert (tmp_path / "osaka" / "key.pem").stat().st_mode & 0o077 == 0
        words = ["site", "status", "--coordinator", where, "--credentials", str(tmp_path / "osaka")]
        assert main(words) == 0
        assert capsys.readouterr().out.startswith("waits for 2 more sites"), "the certificate is one for people, too"


def test_each_reason_to_refuse_a_token_is_said(folder, tmp_path):
    with taking_tokens(folder) as (_, port, tokens, _):
        file = TokenFile(folder / "controller" / "tokens")
        anyone = tokens.make(tmp_path / "anyone", None, 1.0, once=False)
        once = tokens.make(tmp_path / "once", None, 1.0, once=True)
        late = replace(anyone, secret="x" * 32, until=datetime.now(UTC) - HOUR)
        file.add(late)
        revoked = tokens.make(tmp_path / "revoked", None, 1.0, once=False)
        tokens.revoke(revoked.number)
        bern = tokens.make(tmp_path / "bern", "bern", 1.0, once=False)
        alice = Token("operator-alice-" * 2, Caller("operator", "alice"))
        file.add(alice)
        exchanged(port, "rome", tmp_path / "once")
        exchanged(port, "rome", tmp_path / "once")  # it holds a certificate
        number = len(list(tmp_path.iterdir()))

        def fresh(token: Token) -> Path:
            nonlocal number
            number += 1
            where = tmp_path / str(number)
            where.mkdir()
            (where / "authority.pem").write_bytes((tmp_path / "anyone" / "authority.pem").read_bytes())
            (where / "token").write_text(token.secret)
            return where

        for site, token, words in (
            ("oslo", replace(anyone, secret="y" * 32), "this token is not known here"),
            ("oslo", revoked, "this token is not known here; it may have been revoked"),
            ("alice", alice, "this token is not known here"),
            ("oslo", once, "was for one certificate, which rome has"),
            ("rome", once, "was for one certificate, which rome has"),
            ("oslo", late, "could be used until"),
            ("oslo", bern, "is for bern, not for oslo"),
            ("paris", anyone, "another node has the name paris"),
            ("rome", anyone, "another node has the name rome"),
            ("bern", anyone, "another node has the name bern"),
            ("../oslo", anyone, "is no name of a site"),
            ("..", anyone, "is no name of a site"),
        ):
            with pytest.raises(OverlayError, match=words):
                exchanged(port, site, fresh(token))
        exchanged(port, "oslo", fresh(anyone))
        exchanged(port, "oslo", fresh(anyone))  # from another machine
        make(tmp_path / "other", Wanted(nodes=("oslo",)))
        another = fresh(anyone)
        (another / "authority.pem").write_bytes((tmp_path / "other/authority/certificate.pem").read_bytes())
        with pytest.raises(OverlayError, match="is not the one that this token is for"):
            exchanged(port, "oslo", another)
    own = folder / "controller"
    with (
        coordinating(1, Security.of(credentials(own))) as (coordinator, _),
        pytest.raises(OverlayError, match="takes no tokens"),
    ):
        exchanged(coordinator.address[1], "oslo", fresh(anyone))


def test_a_certificate_is_kept_until_it_expires_and_after_a_revocation_a_new_token_is_needed(folder, monkeypatch):
    with taking_tokens(folder) as (coordinator, port, tokens, _):
        where, one = f"127.0.0.1:{port}", folder / "one"
        tokens.make(one, "oslo", 1.0, once=False)
        before = serial(exchanged(port, "oslo", one))
        assert serial(exchanged(port, "oslo", one)) == before
        monkeypatch.setattr(enrolment, "not_after", lambda pem: datetime.now(UTC))
        assert serial(exchanged(port, "oslo", one)) != before
        monkeypatch.undo()
        for name in ("two", "three", "four"):  # all within seconds
            token = tokens.make(folder / name, "oslo", 1.0, once=False)
            init(where, "oslo", credentials=folder / name, listen="127.0.0.1:0").close()
            until(lambda: not coordinator.members)
            tokens.revoke(token.number)
            with pytest.raises(OverlayError, match="this certificate of node oslo was revoked"):
                init(where, "oslo", credentials=folder / name, listen="127.0.0.1:0")


def test_without_a_certificate_nothing_is_heard_but_a_token(folder):
    with taking_tokens(folder) as (coordinator, _, _, _):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        join = {"type": "join", "node": "paris", "host": "127.0.0.1", "port": 9}
        for line in (json.dumps(join), '{"type": "status"}', '{"type": "alive"}', '{"type": "renew"}', "[]",
                     "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):  # fmt: skip
            with socket.create_connection(coordinator.address) as plain, context.wrap_socket(plain) as connection:
                connection.sendall(line.encode() + b"\n")
                with connection.makefile("rb") as stream:
                    said = json.loads(stream.readline())
                    assert (said["type"], stream.read()) == ("refused", b""), "and the connection ends"
                assert "wants a certificate, or a token" in said["reason"]
        assert not coordinator.members


def test_a_certificate_is_renewed_and_not_after_its_token_is_revoked(folder, tmp_path, monkeypatch):
    """A site's certificate is due again and again; a revoked token lets the site go at once, with all certificates that
    were issued for it.
    """
    monkeypatch.setattr(renewal, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(renewal, "due", lambda certificate, now: True)
    with taking_tokens(folder) as (coordinator, port, tokens, lines):
        token = tokens.make(tmp_path / "oslo", None, 1.0, once=True)
        tokens.make(tmp_path / "bergen", None, 1.0, once=False)
        where, said = f"127.0.0.1:{port}", list[str]()
        group = init(where, "oslo", credentials=tmp_path / "oslo", listen="127.0.0.1:0", log=said.append)
        other = init(where, "bergen", credentials=tmp_path / "bergen", listen="127.0.0.1:0")
        assert group is not None and other is not None
        serials = {first := serial(tmp_path / "oslo")}
        until(lambda: len(serials.add(serial(tmp_path / "oslo")) or serials) >= 3)
        with group, other, ThreadPoolExecutor(2) as pool:
            assert group.agree(state(1), 0).round == 0
            assert other.agree(state(1), 0).round == 0
            both = [pool.submit(each.average, np.ones(8, np.float32), round=0) for each in (group, other)]
            assert [each.result(60).sites for each in both] == [("bergen", "oslo")] * 2
            waits = pool.submit(group.average, np.ones(8, np.float32), round=1)  # for bergen, which submits nothing
            tokens.revoke(token.number)
            until(lambda: "oslo" not in coordinator.members)
            with pytest.raises(OverlayError):
                waits.result(60)
            with pytest.raises(OverlayError, match="was revoked"):
                init(where, "oslo", credentials=tmp_path / "oslo", listen="127.0.0.1:0")
            until(lambda: any("is not renewed" in line and "was revoked" in line for line in said))
        assert first in serials and any("oslo has left" in line for line in lines)


def test_a_revoked_certificate_lets_no_site_in(folder):
    own = folder / "controller"
    with coordinating(1, Security.of(credentials(own), Admission(own))) as (coordinator, _):
        where, paris = f"127.0.0.1:{coordinator.address[1]}", folder / "nodes" / "paris"
        init(where, "paris", credentials=paris, listen="127.0.0.1:0").close()
        assert certificates(["--folder", str(folder), "--revoke", "paris"]) == 0
        with pytest.raises(OverlayError, match="this certificate of node paris was revoked"):
            init(where, "paris", credentials=paris, listen="127.0.0.1:0")


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["token", "--folder", "/nowhere"], "has no authority with its key", 1),
        (["token", "--folder", "{folder}"], "--output DIR", 1),
        (["token", "--folder", "{folder}", "--revoke", "x"], "there is no token x", 2),
        (["token", "--folder", "{folder}", "--output", "{new}", "--site", "a b"], "is no name of a site", 2),
        (["token", "--folder", "{folder}", "--output", "{new}", "--days", "0"], "--days is above 0", 2),
        (["token", "--folder", "{folder}", "--output", "{folder}/nodes/paris"], "give a new folder", 1),
        (["token", "--folder", "{bearers}", "--output", "{new}"], "make another folder with `inart certificates`", 1),
        (["coordinator", "--sites", "1", "--credentials", "{listed}"], "`inart site token` links it", 2),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(words, said, status, folder, tmp_path, *, capsys):
    places = {"folder": folder, "new": tmp_path / "new", "bearers": tmp_path / "bearers", "listed": tmp_path / "listed"}
    make(places["bearers"], Wanted(nodes=("w1",), operators=()), tokens=True)
    places["listed"].mkdir()
    for file in (folder / "controller").iterdir():
        (places["listed"] / file.name).write_bytes(file.read_bytes())
    TokenFile(places["listed"] / "tokens").add(Token("0123456789abcdef", Caller("node", "w1")))
    assert main(["site", *(word.format(**places) for word in words)]) == status
    assert said in capsys.readouterr().err
    assert not places["new"].exists() and not (folder / "controller" / "tokens").exists(), "nothing is half made"


# --- the file ---


def test_a_token_with_a_condition_makes_no_caller_known(tmp_path):
    file = TokenFile(tmp_path / "tokens")
    known = Token("w" * 16, Caller("node", "w1"))
    file.add(known, Token("x" * 16, Caller("node", "w2"), datetime.now(UTC) + HOUR),
             Token("y" * 16, Caller("node", "w3"), once=True), Token("z" * 16, Caller("node", "*")))  # fmt: skip
    assert load_tokens(file.path) == {known.secret: known.caller}
    for token in file.tokens()[1:]:
        file.remove(token.number)
    file.remove(known.number)
    with pytest.raises(TokenError, match="has no token without conditions"):
        load_tokens(file.path)


def test_claims_and_removals_change_their_own_lines_only(tmp_path):
    file = TokenFile(tmp_path / "tokens")
    until_then = datetime.now(UTC).replace(second=0, microsecond=0) + HOUR
    anyone = Token("a" * 16, Caller("node", "*"), until_then)
    file.path.write_text(f"# by hand\n{'w' * 16} node w1  # first\n{anyone}\n\n")
    file.path.chmod(0o600)
    for name in ("osaka", "bergen", "osaka"):
        file.claim(anyone.secret, name, lambda name: False)
    with pytest.raises(Denied, match="another node has the name w1"):
        file.claim(anyone.secret, "w1", lambda name: False)
    kept = f"# by hand\n{'w' * 16} node w1  # first\n"
    assert file.path.read_text() == f"{kept}{anyone} used=osaka,bergen\n\n"
    assert file.tokens()[1] == replace(anyone, used=("osaka", "bergen"))
    file.remove(anyone.number)
    assert file.path.read_text() == f"{kept}\n"


def test_one_of_several_that_claim_a_token_for_one_certificate_gets_it(tmp_path):
    file = TokenFile(tmp_path / "tokens")
    once = Token("o" * 16, Caller("node", "*"), once=True)
    file.add(once)

    def claim(k: int) -> bool:
        try:
            return bool(TokenFile(file.path).claim(once.secret, f"site{k}", lambda name: False))
        except Denied:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(32))) == 1


@pytest.mark.parametrize("condition", ["until=soon", "used=", "twice", "until="])
def test_unknown_conditions_are_refused(tmp_path, condition):
    path = tmp_path / "tokens"
    path.write_text(f"0123456789abcdef node w1 {condition}\n")
    path.chmod(0o600)
    with pytest.raises(TokenError, match=f"line 1: behind the name stand .* not '{condition}'"):
        TokenFile(path).tokens()
    path.write_text("0123456789abcdef operator alice once\n")
    with pytest.raises(TokenError, match="only nodes exchange tokens"):
        TokenFile(path).tokens()
