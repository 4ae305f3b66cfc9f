"""A pair of controllers: one leads, the other takes over when it dies, hangs or is cut off; jobs do not notice, and no
two lead at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from controlplane.cli.controller import main as operate
from controlplane.cli.serve import main as serve
from controlplane.common.log_lines import calling
from controlplane.common.rpc.channels import check_address
from controlplane.common.rpc.client import ControllerError, Identity, Membership, fetch_status
from controlplane.service import epochs
from controlplane.service.journal import Journal
from controlplane.service.pair import leadership
from controlplane.service.pair.etcd import CALL_SECONDS, EtcdStore
from controlplane.service.pair.leadership import BEAT, LEADER, Leadership, NotLeading
from controlplane.service.pair.shared_state import EPOCH, SharedEpochs, SharedState
from controlplane.service.pair.store import Store, StoreError, Value
from controlplane.service.state import Keeps, StateError, resume
from p4src.protocol import ENCODING
from tests.deploy.fake_switch import FakeSwitch
from tests.support.config import config
from tests.support.memory_store import MemoryStore
from topologies.etcd import INSTALL, Etcd, installed
from topologies.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = "leafspine:leaves=2,spines=1,servers=2"
SECONDS = 60.0
Until = Callable[..., None]


# -- etcd -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def etcd(tmp_path_factory) -> Iterator[str]:
    """A real etcd, with one member, and where it listens."""
    if not installed():
        pytest.skip(f"there is no etcd: {INSTALL}")
    with Etcd(tmp_path_factory.mktemp("etcd")) as made:
        yield made.address


@pytest.fixture(params=["memory", "etcd"])
def store(request, tmp_path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    return EtcdStore([request.getfixturevalue("etcd")], f"/inart-test/{tmp_path.name}")


# -- the store --------------------------------------------------------------------------------------------------------


def test_a_store_changes_only_what_is_as_it_was_read(store):
    assert store.read("jobs") == Value()
    first = store.commit({"jobs": b"one"}, {"jobs": 0})
    assert first and store.read("jobs") == Value(b"one", first)
    assert not store.commit({"jobs": b"two", "epoch": b"7"}, {"jobs": 0})
    assert store.read("jobs").content == b"one" and store.read("epoch") == Value(), "all or nothing"
    second = store.commit({"jobs": b"two", "epoch": bytes(range(256)) * 40}, {"jobs": first, "epoch": 0})
    assert second > first
    assert store.read("epoch") == Value(bytes(range(256)) * 40, second)


def test_of_many_who_want_to_write_first_one_does(store):
    won: list[int] = []
    begin = threading.Barrier(6)

    def write(number: int) -> None:
        begin.wait()
        if store.commit({LEADER: b"%d" % number}, {LEADER: 0}):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(won) == 1 and store.read(LEADER).content == b"%d" % won[0]


def test_an_etcd_that_does_not_answer_is_named(etcd):
    nobody = EtcdStore(["127.0.0.1:1"], "/inart-test/none")
    with pytest.raises(StoreError, match=r"etcd does not answer \(127.0.0.1:1: .*refused"):
        nobody.read("jobs")
    one_of_two = EtcdStore(["127.0.0.1:1", etcd], "/inart-test/two")
    assert one_of_two.read("jobs") == Value(), "another member answers"


@pytest.mark.parametrize("given", ["store", "127.0.0.1:2379/net", "etcd://127.0.0.1/net", "etcd://127.0.0.1:2379"])
def test_a_store_that_is_no_etcd_is_refused_with_an_example(tmp_path, capsys, given):
    listen = ["--listen", "127.0.0.1:0", "--state", str(tmp_path / "state")]
    switches = tmp_path / "switches.json"
    there = {name: {"address": f"127.0.0.1:{port}", "device_id": 1} for port, name in enumerate(("e1", "e2", "s1"), 1)}
    switches.write_text(json.dumps(there))
    assert (
        serve(
            [
                "--topology",
                TOPOLOGY,
                "--bmv2",
                "--switches",
                str(switches),
                *listen,
                *config(tmp_path, controller={"store": given}),
            ]
        )
        == 2
    )
    assert f"store {given}: wanted: etcd://HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


# -- who leads --------------------------------------------------------------------------------------------------------


class Shaky:
    """A store that can be cut off from one controller."""

    def __init__(self, store: Store) -> None:
        self.store, self.cut = store, threading.Event()

    def read(self, name: str) -> Value:
        if self.cut.is_set():
            raise StoreError("cut off")
        return self.store.read(name)

    def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        if self.cut.is_set():
            raise StoreError("cut off")
        return self.store.commit(values, expected)

    def compact(self, revision: int) -> None:
        self.store.compact(revision)


class One:
    """A controller that waits, and leads, and knows why it does not any more."""

    def __init__(self, store: Store, name: str, after: float = 60.0) -> None:
        self.store, self.why = Shaky(store), ""
        self.led, self.gone, self.stop = threading.Event(), threading.Event(), threading.Event()
        self.said: list[str] = []
        self.leadership = Leadership(self.store, name, self._lost, after=after)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        if self.leadership.wait(self.stop, calling(self.said.append)):
            self.led.set()

    def _lost(self, why: str) -> None:
        self.why = why
        self.gone.set()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(SECONDS)
        self.leadership.end()


@pytest.fixture
def ones() -> Iterator[Callable[..., One]]:
    store, made = MemoryStore(), list[One]()

    def make(name: str, **more: float) -> One:
        made.append(One(store, name, **more))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_the_next_leads_when_the_leader_ends_and_nobody_before(ones, until):
    first = ones("a")
    assert first.led.wait(SECONDS)
    second = ones("b")
    until(lambda: "waiting: a leads" in second.said, "the second knows who leads")
    assert not second.led.is_set() and first.leadership.leads
    first.leadership.end()
    assert second.led.wait(SECONDS) and second.leadership.confirmed()
    assert not first.leadership.leads and not first.leadership.confirmed()


def test_a_leader_that_is_cut_off_knows_it_before_the_next_one_leads(ones):
    """What it wanted to write then is refused on both sides of the cut, and after it."""
    first = ones("a", after=2.0)
    assert first.led.wait(SECONDS)
    second = ones("b", after=2.0)
    first.store.cut.set()
    assert first.gone.wait(SECONDS) and "the store has taken no beat for 1.33333 s: cut off" in first.why
    assert not first.leadership.leads
    assert second.led.wait(SECONDS)
    first.store.cut.clear()
    with pytest.raises(NotLeading):
        first.leadership.commit({"epoch": b"9"})
    assert second.leadership.commit({"epoch": b"8"}) and second.store.read("epoch").content == b"8"


class Delayed:
    """Forwards connections, with a request each, to an address, and delivers each answer `seconds` later."""

    def __init__(self, address: str, seconds: float) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        host, _, port = address.rpartition(":")
        self._there, self._seconds = (host, int(port)), seconds
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self.server.accept()[0], socket.create_connection(self._there)
                threading.Thread(target=self._copy, args=(near, far, 0.0), daemon=True).start()
                threading.Thread(target=self._copy, args=(far, near, self._seconds), daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket, seconds: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(seconds)  # the delay that is tested
                seconds = 0.0
                to.sendall(data)
        to.close()


def test_a_controller_leads_with_an_etcd_that_takes_half_a_second(etcd, until, monkeypatch):
    """All times are four times as long, so that a busy machine makes no difference."""
    monkeypatch.setattr("controlplane.service.pair.etcd.CALL_SECONDS", 4 * CALL_SECONDS)
    delayed = Delayed(etcd, 4 * 0.45)
    direct = EtcdStore([etcd], "/inart-test/slow")
    one = One(EtcdStore([delayed.address], "/inart-test/slow"), "slow", after=4 * leadership.AFTER_SECONDS)
    try:
        assert one.led.wait(SECONDS)
        until(lambda: int(direct.read(BEAT).content) >= 20, "it writes beats")
        assert one.leadership.leads and not one.why
    finally:
        one.end()
        delayed.server.close()


def test_beats_do_not_fill_the_etcd(etcd, until, monkeypatch):
    """The leader has the store drop the revisions of beats, which had filled an etcd of 2 GiB after 79 days."""
    monkeypatch.setattr(leadership, "COMPACT_SECONDS", 0.2)
    monkeypatch.setattr("controlplane.service.pair.etcd.CALL_SECONDS", SECONDS)
    store = EtcdStore([etcd], "/inart-test/beats")
    one = One(store, "one", after=SECONDS)
    try:
        assert one.led.wait(SECONDS)
        first = store.read(LEADER).revision

        def dropped() -> bool:
            try:
                store._call("range", {"key": store._key(BEAT), "revision": str(first)})
                return False
            except StoreError as error:
                return "has been compacted" in str(error)

        until(dropped, "the first beat is dropped")
        assert one.leadership.leads and one.leadership.commit({"jobs": b"one"})
    finally:
        one.end()


def test_a_full_etcd_is_reported_as_full(monkeypatch):
    full = ValueError("etcdserver: mvcc: database space exceeded")
    monkeypatch.setattr(EtcdStore, "_ask", Mock(side_effect=full))
    with pytest.raises(StoreError, match=r"etcd is full .*space exceeded.*etcdctl alarm disarm"):
        EtcdStore(["a:1", "b:2"], "/inart-test/full").commit({"jobs": b""}, {})


def test_a_machine_that_was_stopped_with_its_clock_cannot_write(ones, monkeypatch):
    """It believes that it leads, as no time has passed for it; the store compares who leads with every write."""
    first = ones("a", after=600.0)
    assert first.led.wait(SECONDS)
    there = first.store.read(LEADER)
    assert first.store.commit({LEADER: b"b 1", BEAT: b"0"}, {LEADER: there.revision})
    assert first.leadership.leads and not first.leadership.confirmed()
    with pytest.raises(NotLeading):
        first.leadership.commit({"jobs": b"old"})
    assert first.store.read("jobs") == Value() and first.gone.wait(SECONDS)
    assert first.why == "another controller leads"


def test_an_answer_that_was_lost_does_not_leave_the_network_without_a_leader():
    """The store has written who leads, but the answer did not come."""

    class Forgetful(MemoryStore):
        lost = 1

        def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
            done = super().commit(values, expected)
            if self.lost:
                self.lost -= 1
                raise StoreError("the answer was lost")
            return done

    one = One(Forgetful(), "a", after=30.0)
    assert one.led.wait(SECONDS)
    one.end()


def test_epochs_grow_over_controllers_also_with_a_clock_ahead(ones, tmp_path, monkeypatch):
    """A day ahead, then the right time: an epoch never goes back; both have the same keys."""
    first = ones("a")
    assert first.led.wait(SECONDS)
    now = time.time()
    monkeypatch.setattr(epochs.time, "time", lambda: now + 86400)
    one = SharedEpochs(tmp_path / "one", first.leadership)
    before, key = one.next(), one.key(5)
    monkeypatch.setattr(epochs.time, "time", lambda: now)
    first.leadership.end()
    second = ones("b")
    assert second.led.wait(SECONDS)
    two = SharedEpochs(tmp_path / "two", second.leadership)
    assert two.next() == before + 1 and two.key(5) == key
    with pytest.raises(NotLeading):
        one.next()


def test_jobs_that_begin_at_the_same_time_get_different_epochs(ones, tmp_path, monkeypatch):
    """Between the read and the write of one job's epoch, another job of the same controller gets one."""
    first = ones("a")
    assert first.led.wait(SECONDS)
    shared = SharedEpochs(tmp_path / "state", first.leadership)
    read, between = first.store.read, list[int]()

    def read_late(name: str) -> Value:
        found = read(name)
        if name == EPOCH and not between:
            between.append(0)
            between[0] = shared.next()
        return found

    monkeypatch.setattr(first.store, "read", read_late)
    assert shared.next() > between[0] > 0


def test_the_only_controller_of_a_network_becomes_one_of_a_pair(ones, tmp_path):
    """Its jobs, epoch and secret move into the store; from then on those of the store hold. Its folder still learns of
    later epochs, so that it may become the only one again."""
    alone = epochs.EpochStore(tmp_path / "state")
    before, key = alone.next(), alone.key(1)
    (tmp_path / "state" / "jobs.json").write_text('{"jobs": [], "kept_off": ["s1"]}')
    first = ones("a")
    assert first.led.wait(SECONDS)
    shared = SharedEpochs(tmp_path / "state", first.leadership)
    with SharedState(tmp_path / "state", first.leadership) as state:
        assert resume(state, shared).disabled == ["s1"]
        state.save(Keeps(disabled=["s2"]))
    shared.adopt(before + 10**6)
    assert shared.next() == before + 10**6 + 1 and shared.key(1) == key
    with SharedState(tmp_path / "elsewhere", first.leadership) as state:
        assert state.load() == Keeps([], ["s2"], [])
    assert alone.next() == before + 10**6 + 2 and epochs.EpochStore(tmp_path / "state").key(1) == key


@pytest.mark.parametrize("name", ["jobs", EPOCH])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_damaged_value_of_the_store_is_reported(ones, tmp_path, name, content):
    first = ones("a")
    assert first.led.wait(SECONDS)
    first.leadership.commit({name: content})
    with (
        SharedState(tmp_path / "a", first.leadership) as state,
        pytest.raises((StateError, OSError), match=f"the store's value '{name}'"),
    ):
        resume(state, SharedEpochs(tmp_path / "a", first.leadership))


def test_a_folder_of_another_secret_does_not_bring_its_jobs_into_the_store(ones, tmp_path):
    """The store has a secret but no jobs yet: entries of the folder's jobs could not be read with it."""
    own = epochs.EpochStore(tmp_path / "b")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "jobs.json").write_text(json.dumps({"jobs": [], "begun": [7], "secret": own.fingerprint()}))
    first = ones("a")
    assert first.led.wait(SECONDS)
    SharedEpochs(tmp_path / "a", first.leadership).check()
    shared = SharedEpochs(tmp_path / "b", first.leadership)
    with SharedState(tmp_path / "b", first.leadership) as state, pytest.raises(StateError, match="another secret"):
        resume(state, shared)


def test_addresses_of_several_controllers():
    assert check_address("10.0.0.1:9600,[::1]:9600") and check_address("10.0.0.1:9600")
    for wrong in ("10.0.0.1:9600,", "a:1,b", "a:1 b:2"):
        with pytest.raises(ValueError, match=r"a controller's address is HOST:PORT"):
            check_address(wrong)
    with pytest.raises(ControllerError, match=r"none of the controllers at 127.0.0.1:1,127.0.0.1:2 answers"):
        fetch_status("127.0.0.1:1,127.0.0.1:2")


# -- processes --------------------------------------------------------------------------------------------------------


class Process:
    """A `serve` of its own."""

    def __init__(self, folder: Path, name: str, *, store: str, switches: Path, port: int, artifacts: str) -> None:
        self.log = folder / f"{name}.log"
        command = [
            sys.executable, "-m", "inart", "serve", "--topology", TOPOLOGY, "--bmv2", "--switches", str(switches),
            "--state", str(folder / name), "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        own = {"store": store, "name": name, "takeover_after": 4}
        (folder / f"config of {name}").mkdir(exist_ok=True)
        command += config(folder / f"config of {name}", switches={"artifacts": artifacts}, controller=own)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))

    def said(self, words: str) -> bool:
        return words in self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Agent:
    """A joined agent; epochs that it was told to run, and everything that stopped it."""

    def __init__(self, controllers: str, node: str, role: str) -> None:
        self.epochs: list[int] = []
        self.stops: list[str] = []
        listener = SimpleNamespace(
            on_waiting=lambda missing, reason: None,
            on_configuration=lambda config: self.epochs.append(config.epoch),
            on_abort=lambda reason, nodes: self.stops.append(reason),
            on_refused=self.stops.append,
            on_unreachable=lambda reason: None,
        )
        identity = Identity(node, (), role, ENCODING)
        self.member = Membership(controllers, identity, listener)
        self.member.start()


class Pair:
    """Two controllers of three switches, with a job of four agents that know both."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.switches = {name: FakeSwitch(number) for number, name in enumerate(("e1", "e2", "s1"), 1)}
        self.file = folder / "switches.json"
        there = {n: {"address": s.address, "device_id": s.device_id} for n, s in self.switches.items()}
        self.file.write_text(json.dumps(there))
        self.ports = dict(zip("ab", free_ports(2), strict=True))
        self.controllers = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.processes: list[Process] = []
        self.agents: list[Agent] = []

    def start(self, name: str, artifacts: str = "v1model-4") -> Process:
        made = Process(
            self.folder, name, store=self.store, switches=self.file, port=self.ports[name], artifacts=artifacts
        )
        self.processes.append(made)
        return made

    def join(self) -> None:
        words = ["--job", "workers=3,ps=1,name=A", "--controller", self.controllers]
        assert operate(["job", "add", *words]) == 0
        status = fetch_status(self.controllers, job="A")
        self.agents = [Agent(self.controllers, agent.node, agent.role) for agent in status.agents]

    def joined(self, controllers: str = "") -> bool:
        try:
            status = fetch_status(controllers or self.controllers, job="A")
        except ControllerError:
            return False
        return bool(status.agents) and all(agent.joined for agent in status.agents) and status.state == "running"

    def held(self) -> dict[str, dict[bytes, bytes]]:
        return {name: switch.snapshot() for name, switch in self.switches.items()}

    def close(self) -> None:
        for agent in self.agents:
            agent.member.close(announce=False)
        for one in self.processes:
            one.process.kill()
            one.process.wait(SECONDS)
        for switch in self.switches.values():
            switch.stop()


@pytest.fixture
def pair(etcd, tmp_path) -> Iterator[Pair]:
    made = Pair(tmp_path, f"etcd://{etcd}/pair-{tmp_path.name}")
    yield made
    made.close()


def test_a_leader_that_is_killed_or_hangs_is_replaced_and_the_job_does_not_notice(pair, until):
    """Kill -9, then SIGSTOP: the other one goes on with the same job, epoch and entries; who wakes up ends itself."""
    a = pair.start("a")
    until(lambda: a.said("controller serves on"), "the first one leads", SECONDS)
    b = pair.start("b")
    until(lambda: b.said("waiting: a leads"), "the second one waits", SECONDS)
    pair.join()
    until(pair.joined, "the job runs", SECONDS)
    until(lambda: all(agent.epochs for agent in pair.agents), "every agent has an epoch", SECONDS)
    epochs_before, held = [agent.epochs[:] for agent in pair.agents], pair.held()

    a.signal(signal.SIGKILL)
    until(lambda: b.said("controller serves on"), "the second one leads", SECONDS)
    until(lambda: pair.joined(f"127.0.0.1:{pair.ports['b']}"), "all agents are with it", SECONDS)
    assert [agent.epochs[:1] for agent in pair.agents] == epochs_before
    assert len({agent.epochs[-1] for agent in pair.agents}) == 1 and pair.agents[0].epochs[-1] == epochs_before[0][0]
    assert not any(agent.stops for agent in pair.agents) and pair.held() == held

    again = pair.start("a")
    until(lambda: again.said("waiting: b leads"), "the first one waits", SECONDS)
    begun = again.log.read_text().count("controller serves on")
    b.signal(signal.SIGSTOP)
    until(lambda: again.log.read_text().count("controller serves on") > begun, "the first one leads again", SECONDS)
    until(lambda: pair.joined(f"127.0.0.1:{pair.ports['a']}"), "all agents are with it", SECONDS)
    b.signal(signal.SIGCONT)
    assert b.process.wait(SECONDS) == 3, "it does not lead any more, and ends"
    assert b.said("does not lead any more")
    journal = Journal(pair.folder / "b" / "journal")
    lines = {entry.text for entry in journal.read().entries}
    assert {"waiting: a leads", "b leads"} <= lines, "also those from before it had the folder"
    journal.close()
    assert pair.agents[0].epochs[-1] == epochs_before[0][0]
    assert not any(agent.stops for agent in pair.agents) and pair.held() == held
    assert pair.joined()


def test_controller_and_program_are_upgraded_with_a_job_running(pair, tmp_path, until):
    """The one that waits is started with another build of the program, and the leader is ended: the other one loads the
    program on every switch, with the same entries; the job's agents go on in the same epoch.
    """
    build = tmp_path / "next"
    shutil.copytree(ROOT / "p4src" / "artifacts" / "v1model-4", build)
    with (build / "inart.json").open("a") as file:
        file.write("\n")  # A program by another name to the switches, which know it by its digest.
    a = pair.start("a")
    until(lambda: a.said("controller serves on"), "the first one leads", SECONDS)
    pair.join()
    until(pair.joined, "the job runs", SECONDS)
    until(lambda: all(agent.epochs for agent in pair.agents), "every agent has an epoch", SECONDS)
    epoch, held = pair.agents[0].epochs[0], pair.held()
    b = pair.start("b", str(build))
    until(lambda: b.said("waiting: a leads"), "the second one waits", SECONDS)
    a.signal(signal.SIGTERM)
    assert a.process.wait(SECONDS) == 0
    until(lambda: b.said("controller serves on"), "the second one leads", SECONDS)
    assert b.said("program loaded on 3 switches") and [one.pipelines for one in pair.switches.values()] == [2, 2, 2]
    until(lambda: pair.joined(f"127.0.0.1:{pair.ports['b']}"), "all agents are with it", SECONDS)
    assert pair.held() == held
    assert {agent.epochs[-1] for agent in pair.agents} == {epoch}
    assert not any(agent.stops for agent in pair.agents)
