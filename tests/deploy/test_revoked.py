"""Certificates that are taken back before their end, and those that are renewed when their end comes near."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from controlplane.cli.certificates import Wanted, make, revoke
from controlplane.cli.certificates import main as certificates
from controlplane.common.access import Access, Revoked, issuer_of
from controlplane.common.authority import Authority
from controlplane.common.rpc.client import ControllerError, fetch_status
from controlplane.common.rpc.renewal import Renewal
from controlplane.common.rpc.tls import Tls, credentials
from controlplane.service.web.server import Web
from tests.deploy.memory_network import MemoryNetwork


class Rig:
    """A controller on its own machine that demands certificates."""

    def __init__(self, folder: Path) -> None:
        self.ours = folder / "ours"
        make(self.ours, Wanted(nodes=("h1",), operators=("alice", "bob")))
        own = self.ours / "controller"
        self.net = MemoryNetwork(folder)
        self.authority = Authority.of(self.ours / "authority", "", 7)
        access = Access(certificates=True, revoked=Revoked(own / "revoked"), issuer=self.authority.next_of)
        tls = Tls(own / "certificate.pem", own / "key.pem", own / "authority.pem")
        self.address = self.net.serve(tls, access=access)

    def ask(self, who: str) -> None:
        fetch_status(self.address, credentials(self.ours / who))


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.net.close()


def test_a_revoked_certificate_lets_nobody_in_and_its_successor_does(rig, capsys):
    """Without a restart of the controller; others are not concerned."""
    rig.ask("operators/alice")
    assert certificates(["--folder", str(rig.ours), "--revoke", "operators/alice"]) == 0
    assert "revoked" in capsys.readouterr().out
    with pytest.raises(ControllerError, match="this certificate of operator alice was revoked"):
        rig.ask("operators/alice")
    assert any("operator alice was revoked" in line for line in rig.net.log), "who tried is in the log"
    rig.ask("operators/bob")
    assert certificates(["--folder", str(rig.ours), "--renew", "operators/alice"]) == 0
    rig.ask("operators/alice")


def test_with_a_list_that_cannot_be_read_nobody_comes_in(rig):
    for line in ("3fa9 operator bob 2026-11-29", "inart://operator/bob 2026-11-29T10:00:00", "inart://operator/bob"):
        (rig.ours / "controller" / "revoked").write_text(f"# fine\n{line}\n")
        with pytest.raises(ControllerError, match=rf"the list of revoked .* cannot be used: line 2: '{line}' is not"):
            rig.ask("operators/alice")
        with pytest.raises(ValueError, match=rf"line 2: '{line}' is not"):
            revoke(rig.ours, ["operators/alice"])
    (rig.ours / "controller" / "revoked").unlink()
    rig.ask("operators/alice")


def test_only_clients_are_revoked_and_each_once(rig, capsys):
    for name, words in (
        ("controller", "is no node, operator, viewer or tenant"),
        ("nobody", "is no node, operator, viewer or tenant"),
    ):
        assert certificates(["--folder", str(rig.ours), "--revoke", name]) == 2
        assert words in capsys.readouterr().err
    for _ in range(2):
        assert certificates(["--folder", str(rig.ours), "--revoke", "h1"]) == 0
    lines = (rig.ours / "controller" / "revoked").read_text().splitlines()
    assert len(lines) == 2 and lines[1].startswith("inart://node/h1 ")


def test_a_timer_renews_what_ends_soon_and_leaves_the_rest(tmp_path, capsys):
    ours = tmp_path / "ours"
    make(ours, Wanted(nodes=("h1",)), 5)
    make(ours, Wanted(nodes=("h1", "h2")), 90)
    words = ["--folder", str(ours), "--renew", "all", "--within", "30", "--json"]
    until = []
    for _ in range(2):
        assert certificates(words) == 0
        until.append(json.loads(capsys.readouterr().out)["until"])
    assert until[0] == until[1], "the second time nothing ends soon"
    soon = datetime.now(UTC) + timedelta(days=60)
    assert all(datetime.fromisoformat(end) > soon for end in until[0].values()), "all hold for months"
    assert certificates(words[:-1]) == 0
    assert "none of them ends within 30 days" in capsys.readouterr().out
    assert certificates(["--folder", str(ours), "--within", "3"]) == 2
    assert "--within goes with --renew" in capsys.readouterr().err


def about(file: Path) -> tuple[int, str, datetime]:
    """Return a certificate's serial number, whose it is, and its end."""
    found = x509.load_pem_x509_certificate(file.read_bytes())
    (uri,) = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.serial_number, uri.value, found.not_valid_after_utc


def test_an_agents_certificate_renews_itself_when_two_thirds_of_its_time_are_over(rig):
    folder, said = rig.ours / "nodes/h1", list[str]()
    renewal = Renewal(rig.address, credentials(folder), said.append)
    before = about(folder / "certificate.pem")
    assert not renewal.look(), "it is new"
    long_ago = before[2].timestamp() - 400 * 86400
    os.utime(folder / "certificate.pem", (long_ago, long_ago))
    assert renewal.look()
    serial, uri, end = about(folder / "certificate.pem")
    assert serial != before[0] and uri == before[1] == "inart://node/h1"
    assert timedelta(days=6) < end - datetime.now(UTC) <= timedelta(days=7)
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert not renewal.look()
    rig.ask("nodes/h1")
    assert any("a new certificate for node h1" in line for line in rig.net.log)


def test_a_revoked_certificate_buys_no_other(rig):
    folder, said = rig.ours / "nodes/h1", list[str]()
    assert certificates(["--folder", str(rig.ours), "--revoke", "nodes/h1"]) == 0
    os.utime(folder / "certificate.pem", (0, 0))
    renewal = Renewal(rig.address, credentials(folder), said.append)
    assert not renewal.look() and not renewal.look()
    (line,) = said
    assert "is not renewed" in line and "was revoked" in line


def renewed(rig: Rig, who: str) -> tuple[int, str, datetime]:
    """Renew a certificate by the controller, as its time comes to its end."""
    folder = rig.ours / who
    os.utime(folder / "certificate.pem", (0, 0))
    assert Renewal(rig.address, credentials(folder), print).look()
    return about(folder / "certificate.pem")


def test_a_certificate_is_revoked_with_all_that_were_renewed_from_it(rig):
    """Those renewed before the revocation, and those renewed before the controller has the list."""
    renewed(rig, "nodes/h1")
    thief = rig.ours / "nodes" / "thief"
    shutil.copytree(rig.ours / "nodes/h1", thief)
    revoke(rig.ours, ["nodes/h1"])
    file = rig.ours / "controller" / "revoked"
    arrives_later = file.read_text()
    file.unlink()
    renewed(rig, "nodes/thief")
    renewed(rig, "nodes/thief")
    file.write_text(arrives_later)
    for who in ("nodes/thief", "nodes/h1"):
        with pytest.raises(ControllerError, match="this certificate of node h1 was revoked"):
            rig.ask(who)
    assert certificates(["--folder", str(rig.ours), "--renew", "nodes/h1"]) == 0
    rig.ask("nodes/h1")
    renewed(rig, "nodes/h1")
    rig.ask("nodes/h1")


class Empty:
    """A site with one empty page."""

    def answer(self, path: str, accept: str) -> tuple[str, bytes]:
        return "text/plain", b""


def test_the_page_refuses_a_revoked_certificate(rig):
    tls = credentials(rig.ours / "controller")
    web = Web("127.0.0.1:0", rig.net.controllers[0].access, tls)

    def ask(who: str) -> int:
        context = ssl.create_default_context(cafile=str(rig.ours / "authority/certificate.pem"))
        context.load_cert_chain(rig.ours / who / "certificate.pem", rig.ours / who / "key.pem")
        try:
            with urllib.request.urlopen(web.url, context=context, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            assert "was revoked" in error.read().decode()
            return error.code

    try:
        web.start(Empty())
        assert ask("operators/alice") == 200
        revoke(rig.ours, ["operators/alice"])
        assert ask("operators/alice") == 401
        assert ask("operators/bob") == 200
        assert certificates(["--folder", str(rig.ours), "--renew", "operators/alice"]) == 0
        assert ask("operators/alice") == 200
    finally:
        web.close()


def test_a_revoked_certificate_is_not_made_anew_by_a_timer_but_by_its_name(rig, capsys):
    revoke(rig.ours, ["nodes/h1", "operators/bob"])
    words = ["--folder", str(rig.ours), "--renew"]
    for more in (["all"], ["h1", "--within", "100"]):
        assert certificates([*words, *more]) == 0
        assert "nodes/h1: renewed" not in capsys.readouterr().out
        for who in ("node h1", "operator bob"):
            with pytest.raises(ControllerError, match=f"this certificate of {who} was revoked"):
                rig.ask(f"{who.replace(' ', 's/')}")
    shutil.rmtree(rig.ours / "nodes/h1")
    make(rig.ours, Wanted(nodes=("h1",)))
    rig.ask("nodes/h1")


def test_a_controller_without_the_authority_renews_none(rig):
    folder, said = rig.ours / "nodes/h1", list[str]()
    rig.net.controllers[0].access.issuer = None
    os.utime(folder / "certificate.pem", (0, 0))
    before = about(folder / "certificate.pem")
    assert not Renewal(rig.address, credentials(folder), said.append).look()
    assert "this controller renews no certificates" in said[0]
    assert about(folder / "certificate.pem") == before


def test_what_is_no_authority_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="is no authority with its key"):
        issuer_of(tmp_path)
