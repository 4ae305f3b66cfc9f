"""Access control: every method of the controller's service is tried by every kind of caller."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from controlplane.cli.certificates import Wanted, make
from controlplane.cli.certificates import main as certificates
from controlplane.cli.serve import make_parser
from controlplane.common.access import MAY, ROLES, Caller, TokenError, parse_uri
from controlplane.common.authority import CLIENT, Authority, CertificatesError, now
from controlplane.common.log_lines import SILENT, calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.client import ControllerError, Identity, Membership, fetch_status
from controlplane.common.rpc.stubs import METHODS, ControllerStub
from controlplane.common.rpc.tls import Tls, credentials, is_local, not_after
from controlplane.common.tokens import load_tokens
from controlplane.service.controller import Controller, listen
from controlplane.service.listening import open_listening
from controlplane.targets.base import SwitchAddress, TargetError
from controlplane.targets.p4runtime.session import ask
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from p4src.protocol import ENCODING
from tests.deploy.job import configs
from tests.deploy.switch import DEVICE_ID, Switch
from tests.deploy.test_controller import Listener
from tests.support.config import config
from tests.support.served import serve

WANTED = Wanted(
    controller=("10.0.0.1", "head.cluster"),
    nodes=("w1", "w2", "ps1"),
    operators=("alice",),
    viewers=("grafana",),
    tenants=("physics",),
    switches=(("127.0.0.1:9559", ("V1", "V2")), ("127.0.0.1:9560", ("V3",))),
)
REQUESTS = {
    "join": pb.JoinRequest(node="w1", role="worker", version=ENCODING, agent="w1's agent"),
    "leave": pb.LeaveRequest(agent="ps1's agent"),
    "report": pb.ReportRequest(node="ps1", epoch=1, statistics={"packets": 1e9}),
    "report_update": pb.UpdateReport(agent="ps1's agent", failure="I cannot"),
    "status": pb.StatusRequest(),
    "replan": pb.ReplanRequest(without=["V1"]),
    "add_job": pb.AddJobRequest(job="workers=20,ps=1"),
    "remove_job": pb.RemoveJobRequest(name="another"),
    "log": pb.LogRequest(),
    "reload": pb.ReloadRequest(),
    "renew": pb.RenewRequest(),
}
FROM_PS1 = ("leave", "report", "report_update")
OWNER = {"join": "w1", **dict.fromkeys(FROM_PS1, "ps1")}  # the place that a request is about


@dataclass(frozen=True)
class Party:
    """A caller. may: the roles of `MAY` that it has."""

    tls: Tls | None
    role: str = ""
    name: str = ""
    known: bool = True


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make(made / "ours", WANTED)
    make(made / "theirs", WANTED)
    make(made / "tokens", WANTED, tokens=True)
    shutil.copytree(made / "ours/controller", made / "both")
    shutil.copy(made / "tokens/controller/tokens", made / "both/tokens")
    (made / "listed").mkdir()
    shutil.copy(made / "tokens/controller/tokens", made / "listed/tokens")
    shutil.copytree(made / "ours/controller", made / "no authority")
    (made / "no authority/authority").mkdir()
    shutil.copytree(made / "ours/controller", made / "pair")
    (made / "pair/authority.pem").unlink()
    return made


@pytest.fixture(scope="module")
def parties(folder) -> dict[str, Party]:
    """Return all kinds of callers: with a certificate of this authority or of another, and without one."""
    ours, theirs = folder / "ours", folder / "theirs"
    made = {
        "node w1": Party(credentials(ours / "nodes/w1"), "node", "w1"),
        "node w2": Party(credentials(ours / "nodes/w2"), "node", "w2"),
        "node ps1": Party(credentials(ours / "nodes/ps1"), "node", "ps1"),
        "operator": Party(credentials(ours / "operators/alice"), "operator", "alice"),
        "viewer": Party(credentials(ours / "viewers/grafana"), "viewer", "grafana"),
        "tenant": Party(credentials(ours / "tenants/physics"), "tenant", "physics"),
        "controller": Party(credentials(ours / "controller"), "controller", "controller"),
        "plaintext": Party(None, known=False),
        "no certificate": Party(Tls(authority=ours / "controller/authority.pem"), known=False),
    }
    for name, where in (("another authority's operator", theirs / "operators/alice"), ("switch", ours / "switches/V1")):
        pem = ours / "controller/authority.pem"
        made[name] = Party(Tls(where / "certificate.pem", where / "key.pem", pem), known=False)
    return made


class Rig:
    """A controller over TLS of a job whose parameter server has joined."""

    def __init__(self, folder: Path, where: Path, options: list[str], ps1: Tls) -> None:
        arguments = make_parser().parse_args(["--topology", "testbed", "--listen", "127.0.0.1:0", *options])
        listening = open_listening(arguments, "127.0.0.1:0")
        self.log: list[str] = []
        network = serve(configs(), where, calling(self.log.append))
        self.roster = network.jobs.get().roster
        self.controller = Controller(network, log=calling(self.log.append), access=listening.access)
        self.address = f"127.0.0.1:{self.controller.start(listening.bound)}"
        self.listener = Listener()
        identity = Identity("ps1", (), "parameter_server", ENCODING, agent="ps1's agent")
        self.member = Membership(self.address, identity, self.listener, ps1)
        self.member.start()

    def call(self, method: str, party: Party) -> tuple[grpc.StatusCode, str]:
        """Return the status code of a call and its message."""
        with open_channel(self.address, party.tls) as channel:
            call = getattr(ControllerStub(channel), method)
            try:
                if method == "join":
                    events = call(REQUESTS[method], timeout=20)
                    event = next(events)
                    events.cancel()
                    kind = event.WhichOneof("kind")
                    return grpc.StatusCode.OK, event.refused.reason if kind == "refused" else ""
                call(REQUESTS[method], timeout=20)
            except grpc.RpcError as error:
                return error.code(), error.details()
            return grpc.StatusCode.OK, ""

    def close(self) -> None:
        self.member.close(announce=False)
        self.controller.stop()


@pytest.fixture(scope="module")
def rig(folder, tmp_path_factory) -> Iterator[Rig]:
    ours = folder / "ours"
    made = Rig(folder, tmp_path_factory.mktemp("rig"), ["--credentials", str(ours / "controller")],
               credentials(ours / "nodes/ps1"))  # fmt: skip
    yield made
    made.close()


def announced(rig: Rig) -> int:
    """Return how many agents have said that they leave, whoever said so for them."""
    return sum(record["kind"] == "LeaveAnnounced" for record in rig.roster.journal.records())


PARTIES = ("node w1", "node w2", "node ps1", "operator", "tenant", "viewer", "controller", "switch",
           "another authority's operator", "no certificate", "plaintext")  # fmt: skip


@pytest.mark.parametrize("who", PARTIES)
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_as_everybody(rig, parties, until, method, who):
    until(lambda: "ps1" in rig.roster.members(), "the server has joined")
    party = parties[who]
    before, leaves = rig.roster.members()["ps1"], announced(rig)
    code, words = rig.call(method, party)
    if not party.known:
        assert code == grpc.StatusCode.UNAVAILABLE, "the connection itself is refused"
    elif party.role not in MAY[METHODS[method][0]][0]:
        assert code == grpc.StatusCode.PERMISSION_DENIED
        assert f"{party.role} {party.name} may not " in words
        assert "that takes the certificate or token of" in words
        assert any(words in line for line in rig.log), "the operator sees who tried"
    elif method in OWNER and OWNER[method] != party.name:
        assert code == grpc.StatusCode.PERMISSION_DENIED
        assert f"node {party.name} may not " in words
    else:
        assert code not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNKNOWN)
    after = rig.roster.members().get("ps1")
    assert after is before, "nobody puts the server out"
    if (method, who) not in {(one, "node ps1") for one in FROM_PS1}:
        assert announced(rig) == leaves
        assert after.statistics.get("packets") != 1e9
    after.statistics = {}


def test_table_of_rights_is_complete():
    assert set(MAY) == {method for method, *_ in METHODS.values()}
    assert set(REQUESTS) == set(METHODS)
    assert {role for roles, _ in MAY.values() for role in roles} <= set(ROLES)


@pytest.mark.parametrize("who", ["node w1", "operator", "tenant", "viewer", "nobody", "stranger"])
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_with_every_token(token_rig, folder, method, who):
    tokens = folder / "tokens"
    authority = tokens / "authority/certificate.pem"
    paths = {"node w1": "nodes/w1", "operator": "operators/alice", "viewer": "viewers/grafana",
             "tenant": "tenants/physics"}  # fmt: skip
    if who in paths:
        tls = credentials(tokens / paths[who])
    elif who == "nobody":
        tls = Tls(authority=authority)
    else:
        (folder / "made-up").write_text("a-token-that-nobody-gave\n")
        tls = Tls(authority=authority, token=folder / "made-up")
    code, words = token_rig.call(method, Party(tls))
    if who in ("nobody", "stranger"):
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert "token" in words
    elif who.split()[0] not in MAY[METHODS[method][0]][0] or (method in FROM_PS1 and who == "node w1"):
        assert code == grpc.StatusCode.PERMISSION_DENIED
    else:
        assert code not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNKNOWN)


@pytest.fixture(scope="module")
def token_rig(folder, tmp_path_factory) -> Iterator[Rig]:
    ours = folder / "tokens"
    options = ["--credentials", str(ours / "controller")]
    made = Rig(folder, tmp_path_factory.mktemp("tokens"), options, credentials(ours / "nodes/ps1"))
    yield made
    made.close()


def test_agent_that_is_denied_ends_its_tries_with_the_reason(rig, folder, until):
    listener = Listener()
    other = credentials(folder / "ours/nodes/w2")
    member = Membership(rig.address, Identity("w1", (), "worker", ENCODING), listener, other)
    member.start()
    until(lambda: listener.refused, "the reason")
    assert listener.refused == "node w2 may not join as w1"
    member.close()


def test_node_is_found_by_its_certificate_and_not_by_an_address(rig, folder, until):
    """An agent may claim any address; w2's certificate is only valid for w2."""
    listener = Listener()
    address = configs()["w1"].address
    member = Membership(
        rig.address, Identity("", (address,), "worker", ENCODING), listener, credentials(folder / "ours/nodes/w2")
    )
    member.start()
    try:
        until(lambda: "w2" in rig.roster.members(), "it joins as who it is")
        assert "w1" not in rig.roster.members()
    finally:
        member.close()


def test_clients_verify_the_controllers_certificate(folder, tmp_path, until):
    """Nobody gives a token or an order to a server that runs with another role's certificate."""
    ours = folder / "ours"
    network = serve(configs(), tmp_path, SILENT)
    for impostor in (ours / "nodes/w2", ours / "operators/alice", ours / "switches/V1", folder / "theirs/controller"):
        tls = Tls(impostor / "certificate.pem", impostor / "key.pem", ours / "controller/authority.pem")
        controller = Controller(network)
        port = controller.start(listen("127.0.0.1:0", tls))
        try:
            with pytest.raises(ControllerError, match="UNAVAILABLE"):
                fetch_status(f"127.0.0.1:{port}", credentials(ours / "operators/alice"))
        finally:
            controller.stop()


def test_certificates_hold_at_any_address_of_the_controller(rig, folder):
    operator = credentials(folder / "ours/operators/alice")
    assert fetch_status(rig.address.replace("127.0.0.1", "localhost"), operator).state == "waiting"


def test_switches_know_their_controller_and_it_knows_them(folder, tmp_path, program):
    """A switch accepts no worker's certificate, and another switch's certificate is not accepted for V1."""
    ours = folder / "ours"
    files = {"server.pem": ours / "switches/V1/certificate.pem", "server.key": ours / "switches/V1/key.pem",
             "ca.pem": ours / "switches/V1/authority.pem"}  # fmt: skip
    switch = Switch("softswitch", tmp_path, tls=files)
    own = credentials(ours / "controller-of-switches")
    try:
        switch.start(own, "V1")
        switches = ours / "switch-authority/certificate.pem"
        for client in (None, Tls(authority=switches), credentials(ours / "nodes/w1"), credentials(ours / "controller"),
                       Tls(ours / "nodes/w1/certificate.pem", ours / "nodes/w1/key.pem", switches)):  # fmt: skip
            with pytest.raises(TargetError, match="UNAVAILABLE"):
                ask(SwitchAddress("V1", switch.address, DEVICE_ID, client), 5.0)
        with pytest.raises(TargetError):
            ask(SwitchAddress("V3", switch.address, DEVICE_ID, own), 5.0)
        for name in ("V1", "V2"):  # There are one server, one certificate and two switches.
            target = P4RuntimeTarget(SwitchAddress(name, switch.address, DEVICE_ID, own), program)
            target.connect(20.0)
            target.close()
    finally:
        switch.kill()


# -- what may be listened on ---------------------------------------------------------------------------------------


def parsed(folder: Path, options: list[str], where: Path) -> argparse.Namespace:
    """Return the arguments of these options, of which "second" stands for a second address, for tokens."""
    names = {"c": folder / "ours/controller", "f": folder}
    words = [option.format(**names) for option in options if option != "second"]
    second = config(where, controller={"tokens_listen": "0.0.0.0:0"}) if "second" in options else []
    return make_parser().parse_args(["--topology", "t", "--listen", "x", *words, *second])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "leaves this machine: give --credentials DIR"),
        (["--credentials", "{f}/pair"], "leaves this machine: the credentials need authority.pem"),
        (["--credentials", "{f}/listed"], "leaves this machine: give --credentials DIR"),
        (["--credentials", "{c}", "second"], "tokens_listen is a second address"),
        (["--credentials", "{f}/both"], "certificates and tokens do not go on one address"),
        (["--credentials", "{f}"], "has none of authority.pem"),
        (["--credentials", "{f}/no authority"], "is no authority with its key"),
    ],
)  # fmt: skip
def test_open_controller_takes_a_word(folder, options, message, tmp_path):
    arguments = parsed(folder, options, tmp_path)
    with pytest.raises((ControllerError, ValueError), match=re.escape(message)):
        open_listening(arguments, "0.0.0.0:0")


@pytest.mark.parametrize(
    "options",
    [
        ["--insecure"],
        ["--credentials", "{c}"],
        ["--credentials", "{f}/tokens/controller"],
        ["--credentials", "{f}/both", "second"],
    ],
)
def test_closed_controller_listens(folder, options, tmp_path):
    arguments = parsed(folder, options, tmp_path)
    listening = open_listening(arguments, "0.0.0.0:0")
    assert listening.access.restricted == (options != ["--insecure"])
    listening.bound[0].stop(None)


def test_the_controller_asks_for_certificates_once_somebody_has_one(tmp_path):
    own = tmp_path / "controller"
    make(tmp_path, Wanted(nodes=("w1",), operators=("alice",)), tokens=True)
    assert not (own / "authority.pem").exists()
    assert {caller.name for caller in load_tokens(own / "tokens").values()} == {"w1", "alice"}
    assert certificates(["--folder", str(tmp_path), "--renew", "controller"]) == 0
    assert not (own / "authority.pem").exists(), "a new certificate does not ask for others"
    make(tmp_path, Wanted(nodes=("w2",)))
    assert (own / "authority.pem").read_bytes() == (tmp_path / "authority/certificate.pem").read_bytes()
    make(tmp_path, Wanted(nodes=("w3",)), tokens=True)
    assert (own / "authority.pem").exists(), "w2 has a certificate"


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/x", True), ("0.0.0.0:1", False),
     ("10.0.0.1:1", False), ("[::]:1", False), ("head:1", False)],
)  # fmt: skip
def test_which_addresses_leave_the_machine(address, local):
    assert is_local(address) == local


# -- files ----------------------------------------------------------------------------------------------------------


def test_second_run_adds_and_changes_nothing_else(tmp_path):
    make(tmp_path, Wanted(nodes=("a",)))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.pem")}
    assert [where.name for where in make(tmp_path, Wanted(nodes=("a", "b")))] == ["b"]
    assert {file: file.read_bytes() for file in before} == before


def test_keys_and_tokens_are_the_owners_alone(folder):
    private = [*folder.rglob("key.pem"), *folder.rglob("token"), *folder.rglob("tokens/tokens")]
    assert private
    assert not [file for file in private if file.is_file() and file.stat().st_mode & 0o077]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "a/b"], "cannot be a name here"),
        (["--nodes", ".."], "cannot be a name here"),
        (["--switches", "{here}/none.json"], "cannot read switches file"),
        (["--controller", "bücher"], "cannot be a name in a certificate"),
        (["--topology", "fattree:k=three"], "k"),
        (["--days", "0"], "at least 1"),
        (["--days", "9999999"], "at most 36500"),
        (["--renew", "all", "--within", "9999999"], "at most 36500"),
    ],
)
def test_certificates_that_cannot_be_made(tmp_path, words, message, capsys):
    given = [word.format(here=tmp_path) for word in words]
    assert certificates(["--folder", str(tmp_path / "made"), *given]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def long_ago(tmp_path, monkeypatch) -> Path:
    """A certificate was made a hundred days ago, by an authority with a longer lifetime."""
    Authority.of(tmp_path / "authority", "for longer", 300)
    day = now()
    monkeypatch.setattr("controlplane.common.authority.now", lambda: day - datetime.timedelta(days=100))
    make(tmp_path, Wanted(nodes=("w1",), operators=("alice",)))
    monkeypatch.undo()
    return tmp_path


def test_an_expired_certificate_is_reported(long_ago, folder, rig):
    for who in ("operators/alice", "nodes/w1", "controller"):
        end = not_after((long_ago / who / "certificate.pem").read_text())
        assert f"certificate.pem expired on {end:%Y-%m-%d %H:%M} UTC" in credentials(long_ago / who).expired()
        assert (now() - end).days in (9, 10)
    assert credentials(folder / "ours/operators/alice").expired() == ""
    with pytest.raises(ControllerError, match=r"UNAVAILABLE: the certificate .*/alice/certificate\.pem expired on "):
        fetch_status(rig.address, credentials(long_ago / "operators/alice"), 30.0)
    options = ["--topology", "testbed", "--listen", "10.0.0.1:0", "--credentials", str(long_ago / "controller")]
    with pytest.raises(ValueError, match=r"nobody could come in: the certificate .* expired on "):
        open_listening(make_parser().parse_args(options), "10.0.0.1:0")


@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", "\x00"])
def test_a_file_that_is_no_certificate_has_no_expiry(content, tmp_path):
    (tmp_path / "certificate.pem").write_text(content)
    (tmp_path / "key.pem").write_text(content)
    assert credentials(tmp_path).expired() == ""


def serial(where: Path | str, tls: Tls | None = None) -> int:
    """Return the serial number of a folder's certificate, or of the one that a server shows to a client with these
    files.
    """
    if isinstance(where, Path):
        return x509.load_pem_x509_certificate((where / "certificate.pem").read_bytes()).serial_number
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tls.certificate, tls.key)
    host, _, port = where.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as line, context.wrap_socket(line) as secure:
        return x509.load_der_x509_certificate(secure.getpeercert(True)).serial_number


def test_an_authority_outlives_all_certificates_that_it_signs(tmp_path):
    make(tmp_path / "usual", Wanted(nodes=("a",)))
    ends = [not_after((tmp_path / "usual" / who / "certificate.pem").read_text()) for who in ("authority", "nodes/a")]
    assert ends[0] - ends[1] > datetime.timedelta(days=3000)
    make(tmp_path / "short", Wanted())
    authority = replace(Authority.of(tmp_path / "short/authority", "", 1), days=10**5)
    authority.renew(tmp_path / "short/controller")
    assert not_after((tmp_path / "short/controller/certificate.pem").read_text()) == not_after(authority.pem.decode())


def test_renewed_certificates_keep_their_names_and_others_stay_unchanged(tmp_path, capsys):
    make(tmp_path, WANTED)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()}
    who = ["w1", "operators/alice", "controller", "V1"]
    assert certificates(["--folder", str(tmp_path), "--renew", *who, "--controller", "10.0.0.9", "--days", "5"]) == 0
    assert capsys.readouterr().out.count("renewed, until ") == 4
    changed = {str(file.relative_to(tmp_path)) for file in before if file.read_bytes() != before[file]}
    renewed = ("nodes/w1", "operators/alice", "controller", "switches/V1")
    pairs = {f"{who}/{name}.pem" for who in renewed for name in ("certificate", "key")}
    assert changed == {*pairs, "operators/alice/browser.p12"}
    for who in renewed:
        file = tmp_path / who / "certificate.pem"
        old, new = map(x509.load_pem_x509_certificate, (before[file], file.read_bytes()))
        names = [list(one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) for one in (old, new)]
        more = [x509.IPAddress(ipaddress.ip_address("10.0.0.9"))] if who == "controller" else []
        assert (new.subject, new.issuer, names[1]) == (old.subject, old.issuer, [*names[0], *more])
        assert (new.not_valid_after_utc - now()).days in (4, 5)
        assert (tmp_path / who / "key.pem").stat().st_mode & 0o077 == 0
    assert certificates(["--folder", str(tmp_path), "--renew", "all"]) == 0
    assert all(file.read_bytes() != before[file] for file in before
               if file.name == "key.pem" and "authority" not in file.parent.name)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--renew", "w9"], "no certificate of 'w9'"),
        (["--renew", "same"], "could be nodes/same, operators/same: say which"),
        (["--renew", "authority"], "no certificate of 'authority'"),
        (["--renew", "nodes/same", "--nodes", "b"], "--renew only replaces existing certificates"),
        (["--renew", "nodes/theirs"], "is another authority's"),
    ],
)
def test_certificates_that_cannot_be_renewed_are_refused(tmp_path, words, message, capsys):
    make(tmp_path, Wanted(nodes=("same", "theirs"), operators=("same",)))
    shutil.rmtree(tmp_path / "nodes/theirs")
    other = Authority.of(tmp_path / "elsewhere/authority", "somebody else's", 1)
    other.issue(tmp_path / "nodes/theirs", Caller("node", "theirs"), (CLIENT,))
    before = serial(tmp_path / "nodes/same")
    assert certificates(["--folder", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
    assert serial(tmp_path / "nodes/same") == before


def test_a_running_controller_uses_its_renewed_certificate_for_new_connections(tmp_path, until, caplog):
    make(tmp_path, WANTED)
    own, alice = tmp_path / "controller", credentials(tmp_path / "operators/alice")
    rig = Rig(tmp_path, tmp_path, ["--credentials", str(own)], credentials(tmp_path / "nodes/ps1"))
    try:
        until(lambda: rig.listener.missing, "the server has joined")
        old = serial(own)
        assert serial(rig.address, alice) == old
        Authority.of(tmp_path / "authority", "", 90).renew(own)
        key = (own / "key.pem").read_bytes()
        (own / "key.pem").write_bytes((tmp_path / "nodes/w1/key.pem").read_bytes())
        assert serial(rig.address, alice) == old  # A new certificate without its new key is no pair.
        assert "what replaced TLS files is not used" in caplog.text
        (own / "key.pem").write_bytes(key)
        assert serial(rig.address, alice) == serial(own) != old
        assert fetch_status(rig.address, alice).agents[2].joined  # No agent was disconnected.
    finally:
        rig.close()


def test_a_new_authority_is_taken_without_a_restart(tmp_path):
    make(tmp_path / "a", WANTED)
    make(tmp_path / "b", WANTED)
    own = shutil.copytree(tmp_path / "a/controller", tmp_path / "controller")
    rig = Rig(tmp_path, tmp_path, ["--credentials", str(own)], credentials(tmp_path / "a/nodes/ps1"))
    before, after = (credentials(tmp_path / one / "operators/alice") for one in "ab")
    try:
        assert fetch_status(rig.address, before).state
        shutil.copytree(tmp_path / "b/controller", own, dirs_exist_ok=True)
        assert fetch_status(rig.address, after).state
        with pytest.raises(ControllerError, match="UNAVAILABLE"):
            fetch_status(rig.address, before)
    finally:
        rig.close()


def test_browser_gets_a_file_of_its_own(folder):
    for who, where in (("operator", "operators/alice"), ("viewer", "viewers/grafana")):
        own = folder / "ours" / where
        file = own / "browser.p12"
        assert file.stat().st_mode & 0o077 == 0
        key, certificate, authorities = pkcs12.load_key_and_certificates(file.read_bytes(), None)
        assert key is not None and certificate is not None
        assert certificate.public_bytes(serialization.Encoding.PEM) == (own / "certificate.pem").read_bytes()
        assert authorities[0].public_bytes(serialization.Encoding.PEM) == (own / "authority.pem").read_bytes()
        assert who in certificate.subject.rfc4514_string()
    assert not (folder / "ours/nodes/w1/browser.p12").exists()
    assert not (folder / "tokens/viewers/grafana/browser.p12").exists()


def test_a_file_that_is_no_authority_is_reported(tmp_path):
    (tmp_path / "authority").mkdir()
    for name in ("certificate.pem", "key.pem"):
        (tmp_path / "authority" / name).write_text("a word")
    with pytest.raises(CertificatesError, match="does not hold an authority"):
        make(tmp_path, Wanted())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no token"),
        ("short node w1", "fewer than 16"),
        ("0123456789abcdef node", "TOKEN ROLE NAME is wanted"),
        ("0123456789abcdef king arthur", "TOKEN ROLE NAME is wanted, ROLE being node, operator, tenant, viewer"),
        ("0123456789abcdef node a\n0123456789abcdef node b", "line 2: the same token as node a"),
    ],
)
def test_token_files_are_checked(tmp_path, content, message):
    file = tmp_path / "tokens"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(TokenError, match=message):
        load_tokens(file)


def test_token_file_that_others_read_is_refused(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("0123456789abcdef node w1\n")
    file.chmod(0o644)
    with pytest.raises(TokenError, match="chmod 600"):
        load_tokens(file)


def test_token_is_not_sent_where_it_can_be_read(tmp_path):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    with pytest.raises(ValueError, match="would be read on the way"):
        open_channel("10.0.0.1:9600", Tls(token=file))


@pytest.mark.parametrize(
    "uri", ["", "inart://", "inart://king/a", "inart://node/", "inart://node/a/b", "http://node/a"]
)
def test_meaningless_uris_grant_no_role(uri):
    assert parse_uri(uri) is None
