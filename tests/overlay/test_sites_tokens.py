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
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import credentials
from inart.command import main
from overlay.core.errors import OverlayError
from overlay.net.joining import FILE, Joining, Token
from overlay.net.tls import Security
from overlay.sites import init
from overlay.sites.enrolment import Enrolment
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
    """Start a coordinator with this folder; returns (it, where it listens, its tokens)."""
    joining = Joining(folder)
    security = Security.of(credentials(folder / "controller"), joining)
    with coordinating(1, security, probe_seconds=0) as (coordinator, lines):
        yield coordinator, f"127.0.0.1:{coordinator.address[1]}", joining, lines


def bought(where: str, site: str, token: Token | str, folder: Path) -> Path:
    host, _, port = where.rpartition(":")
    return Enrolment([(host, int(port))], site, str(token), folder / "kept" / site).enrol()


@pytest.mark.timeout(400)
def test_an_unknown_name_joins_in_the_middle_of_training(folder, tmp_path, capsys):
    """Real processes: one site has a certificate, one a token from the environment, a third one comes later."""
    tokens = []
    for words in ([], ["--name", "tokyo", "--once"]):
        assert main(["site", "token", "--folder", str(folder), *words]) == 0
        tokens.append(capsys.readouterr().out.strip())
    (tmp_path / "token").write_text(tokens[0])
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = {key: value for key, value in os.environ.items() if not key.startswith("INART_")}
    common |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:

        def begin(*words: str, **more: str) -> subprocess.Popen[str]:
            environment = common | {"XDG_STATE_HOME": str(tmp_path / "state")} | more
            command = [sys.executable, "-m", "inart", "site", *words]
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
            )
            stack.callback(process.kill)
            return process

        secrets = ["--credentials", str(folder / "controller"), "--tokens", str(folder)]
        coordinator = begin("coordinator", "--sites", "2", "--listen", "127.0.0.1:0", "--probe-seconds", "0", *secrets)
        assert coordinator.stdout is not None
        where = coordinator.stdout.readline().split()[5].rstrip(";")

        def site(name: str, *words: str, **more: str) -> subprocess.Popen[str]:
            run = ["run", "--coordinator", where, "--site", name, "--listen", "127.0.0.1:0", *words]
            return begin(*run, "--", sys.executable, str(script), **more)

        sites = {"paris": site("paris", "--credentials", str(folder / "nodes" / "paris")),
                 "tokyo": site("tokyo", INART_SITE_TOKEN=tokens[1])}  # fmt: skip
        first = sites["paris"].stdout
        assert first is not None and first.readline() == "round 1 with paris, tokyo\n"
        sites["osaka"] = site("osaka", "--token", str(tmp_path / "token"))
        for name, process in sites.items():
            lines = process.communicate(timeout=SECONDS)[0].splitlines()
            assert process.returncode == 0, name
            assert lines[-1].endswith("with osaka, paris, tokyo"), name
        assert main(["site", "token", "--folder", str(folder), "--list"]) == 0
        listed = capsys.readouterr().out
        assert "for any name" in listed and "used by osaka" in listed and "used by tokyo" in listed
        kept = next((tmp_path / "state").glob("inart/sites/*/osaka"))
        assert (kept / "key.pem").stat().st_mode & 0o077 == 0
        assert main(["site", "status", "--coordinator", where, "--credentials", str(kept)]) == 0
        assert capsys.readouterr().out.startswith("waits for 2 more sites"), "the certificate is one for people, too"
    assert tokens[0].split(".")[1] not in (folder / FILE).read_text(), "the secret itself is kept nowhere"


def test_each_reason_to_refuse_a_token_is_said(folder, tmp_path):
    with taking_tokens(folder) as (_, where, joining, _):
        anyone = joining.make(None, HOUR, once=False)
        once = joining.make(None, HOUR, once=True)
        late = joining.make(None, -HOUR, once=False)
        revoked = joining.make(None, HOUR, once=False)
        joining.revoke(revoked.number)
        bought(where, "rome", once, tmp_path)
        for site, token, words in (
            ("oslo", replace(anyone, secret="x" * 32), "does not know this token"),
            ("oslo", replace(anyone, number="other"), "does not know this token"),
            ("oslo", replace(anyone, digest="0" * 64), "is not the one that this token is for"),
            ("oslo", once, "was for one site, and rome has joined with it"),
            ("oslo", late, "could be used until"),
            ("oslo", revoked, "was revoked"),
            ("oslo", joining.make("bern", HOUR, once=False), "is for bern, not for oslo"),
            ("paris", anyone, "another site has the name paris"),
            ("rome", anyone, "another site has the name rome"),
            ("bern", anyone, "another site has the name bern"),
            ("../oslo", anyone, "is no name of a site"),
            ("..", anyone, "is no name of a site"),
            ("oslo", "inart", "this is no token for joining"),
        ):
            with pytest.raises(OverlayError, match=words):
                bought(where, site, token, tmp_path / "new")
        bought(where, "oslo", anyone, tmp_path)
        bought(where, "oslo", anyone, tmp_path / "another machine")
    with (
        coordinating(1, Security.of(credentials(folder / "controller"))) as (coordinator, _),
        pytest.raises(OverlayError, match="takes no tokens: start it with --credentials DIR --tokens FOLDER"),
    ):
        bought(f"127.0.0.1:{coordinator.address[1]}", "oslo", anyone, tmp_path / "more")


def test_without_a_certificate_nothing_is_heard_but_a_token(folder):
    with taking_tokens(folder) as (coordinator, _, _, _):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        join = {"type": "join", "node": "paris", "host": "127.0.0.1", "port": 9}
        for line in (json.dumps(join), '{"type": "status"}', '{"type": "watch"}', '{"type": "renew", "request": ""}',
                     "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):  # fmt: skip
            with socket.create_connection(coordinator.address) as plain, context.wrap_socket(plain) as connection:
                connection.sendall(line.encode() + b"\n")
                with connection.makefile("rb") as stream:
                    said = json.loads(stream.readline())
                    assert (said["type"], stream.read()) == ("refused", b""), "and the connection ends"
                assert "wants a certificate, or a token" in said["reason"]
        assert not coordinator.members


def test_a_certificate_is_renewed_before_its_end_and_not_after_its_token_is_revoked(folder, tmp_path, monkeypatch):
    """A site whose certificate will not hold for long gets another one, and another; a revoked token lets it go at
    once."""
    monkeypatch.setattr(Enrolment, "seconds_left", lambda _: 1.0)
    with taking_tokens(folder) as (coordinator, where, joining, lines):
        token = joining.make(None, HOUR, once=True)
        kept, said = tmp_path / "kept", []
        group = init(where, "oslo", credentials=kept, listen="127.0.0.1:0", token=str(token), log=said.append)
        other = init(where, "bergen", credentials=tmp_path / "other", listen="127.0.0.1:0",
                     token=str(joining.make(None, HOUR, once=False)))  # fmt: skip
        assert group is not None and other is not None
        serials = {first := serial(kept)}
        until(lambda: len(serials.add(serial(kept)) or serials) >= 3)
        with group, other, ThreadPoolExecutor(2) as pool:
            assert group.agree(state(1), 0).round == 0
            assert other.agree(state(1), 0).round == 0
            both = [pool.submit(each.average, np.ones(8, np.float32), round=0) for each in (group, other)]
            assert [each.result(60).sites for each in both] == [("bergen", "oslo")] * 2
            waits = pool.submit(group.average, np.ones(8, np.float32), round=1)  # for bergen, which submits nothing
            joining.revoke(token.number)
            until(lambda: "oslo" not in coordinator.members)
            with pytest.raises(OverlayError):
                waits.result(60)
            with pytest.raises(OverlayError, match="was revoked"):
                init(where, "oslo", credentials=kept, listen="127.0.0.1:0", token=str(token))
            until(lambda: any("was not renewed" in line and "was revoked" in line for line in said))
        assert first in serials and any("oslo has left" in line for line in lines)


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "certificate.pem").read_bytes()).serial_number


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["token", "--folder", "/nowhere"], "has no authority with its key"),
        (["token", "--folder", "{folder}", "--revoke", "x"], "there is no token x"),
        (["token", "--folder", "{folder}", "--name", "a b"], "is no name of a site"),
        (["coordinator", "--sites", "1", "--tokens", "{folder}"], "--tokens needs --credentials"),
        (["coordinator", "--sites", "1", "--tokens", "{other}", "--credentials", "{folder}/controller"],
         "is not the authority that is to sign"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(words, said, folder, tmp_path, capsys):
    make(tmp_path / "other", Wanted())
    places = {"folder": folder, "other": tmp_path / "other"}
    assert main(["site", *(word.format(**places) for word in words)]) == 1
    assert said in capsys.readouterr().err
