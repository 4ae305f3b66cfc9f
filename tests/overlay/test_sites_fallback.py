"""Rounds that the network of sites gives up are done over torch.distributed, by all sites or by none.

In the histories sites, their stores and their sums fail in any order, one step of one site at a time. Nobody may take
the group's result while somebody takes the network's, nor may some take the group's and others never. Each part of the
agreement is taken away once, to see that go wrong. Then real processes train while their links are cut.
"""

from __future__ import annotations

import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist

from controlplane.planner.plan.task import Sending
from controlplane.planner.strategies.wan.policy import Lost, Ready, Start, Tick
from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.errors import Behind, Late, OverlayError, PeerLost
from overlay.core.site_network import SiteNetwork
from overlay.sites import Fallback, SiteGroup, init
from overlay.sites import group as group_module
from overlay.sites.fallback import NO, Attempt, Ballot, Rescue
from tests.overlay import site_fallback
from tests.overlay.test_agents import until
from tests.overlay.test_sites import EVERY, PROCESSES, SITES, Reference, coordinating
from tests.overlay.test_sites_elastic import averaged as averaged_over_network
from tests.overlay.test_sites_elastic import begun, state
from topologies.ports import free_port

NAMES = ("a", "b", "c")
SECONDS = 120.0


# --- histories ---


class CutOffError(RuntimeError):
    """The store cannot be reached from here."""


class Turns:
    """Threads of which one runs at a time, until it asks for its next turn; who is next is drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._waiting: dict[str, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)

    def turn(self, name: str) -> None:
        """Called by a thread before whatever others may see."""
        self._back.release()
        self._waiting[name].acquire()

    def run(self, acts: dict[str, object]) -> None:
        def whole(name: str, act) -> None:
            self._waiting[name].acquire()
            act()
            del self._waiting[name]
            self._back.release()

        for name, act in acts.items():
            self._waiting[name] = threading.Semaphore(0)
            threading.Thread(target=whole, args=(name, act), daemon=True).start()
        while self._waiting:
            self.now += 1.0
            self._waiting[self.random.choice(sorted(self._waiting))].release()
            assert self._back.acquire(timeout=30), "a thread does not come back"


class SiteStore:
    """The store as one site sees it. Each call is a turn, and from a turn that is drawn on it may be cut off."""

    def __init__(self, shared: dict[str, bytes], turns: Turns, name: str) -> None:
        self._shared, self._turns, self._name = shared, turns, name
        self.cut = turns.random.random() < 0.3 and turns.random.randrange(60)

    def _turn(self) -> None:
        self._turns.turn(self._name)
        if self.cut is not False:
            self.cut -= 1
            if self.cut < 0:
                raise CutOffError(self._name)

    def set(self, key: str, value: str) -> None:
        self._turn()
        self._shared[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._turn()
        return self._shared[key]

    def check(self, keys: list[str]) -> bool:
        self._turn()
        return all(key in self._shared for key in keys)

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        self._turn()
        if key not in self._shared and not expected:
            self._shared[key] = wanted.encode()
        return self._shared.get(key, expected.encode())


class ModelSite:
    """took: whose result of round 0 the site has: "network", "group", or "" for none so far."""

    def __init__(self, name: str, history: History) -> None:
        self.name, self.history, self.took, self.open = name, history, "", False
        self.left = False  # its trainer does not wait any more for what the attempt gives
        self.store = SiteStore(history.shared, history.turns, name)
        self.ballot = Ballot(self.store, name, NAMES, self.add, clock=lambda: history.turns.now,
                             sleep=lambda seconds: history.turns.turn(name))  # fmt: skip

    def add(self, values: np.ndarray, seconds: float) -> bool:
        """All sites have to come; the sum may fail at one and not at another, and the trainer's time may be over."""
        promised = [f"0/{self.attempt.number}/promise/{name}" in self.history.shared for name in NAMES]
        self.history.in_vain = self.history.in_vain or not all(promised)
        key = max(self.history.sums, default=0)
        self.history.sums.setdefault(key, set()).add(self.name)
        while len(self.history.sums[key]) < len(NAMES):
            self.history.turns.turn(self.name)
            if self.history.turns.now > self.history.end:
                return False
        values[:] = 6.0
        if self.history.turns.random.random() < 0.1:
            self.left = not self.attempt.leave()
            self.network()
        return self.history.turns.random.random() > 0.2

    def network(self) -> bool:
        """Whether the network of sites gives this site the round's result; it may only where nobody has the group's."""
        if self.history.turns.random.random() < self.history.network:
            self.took = "network"
            return True
        return False

    def train(self) -> None:
        for _ in range(3):
            if self.network():
                try:
                    self.ballot.took(0)
                except CutOffError:
                    pass
                return
            self.attempt, self.left = (attempt := Attempt(0)), False
            patience = self.history.turns.random.choice((40, 60, 80, 120, 2000))
            try:
                done = self.ballot.try_round(attempt, np.full(4, 2.0, np.float32), self.history.turns.now + patience)
            except CutOffError:
                if attempt.leave():
                    self.open = True  # it has said that it has the sum, and does nothing until it knows the end
                    return
                done = False
            if self.took:
                return
            if done and not self.left:
                self.took = "group"
                return


class History:
    def __init__(self, seed: int) -> None:
        self.turns = Turns(seed)
        self.shared: dict[str, bytes] = {}
        self.sums: dict[int, set[str]] = {0: set()}
        self.network = self.turns.random.choice((0.0, 0.0, 0.1, 0.5))
        self.end = 6000.0
        self.in_vain = False  # a sum was begun without all sites, after which the group is of no use any more
        self.sites = [ModelSite(name, self) for name in NAMES]
        self.turns.run({site.name: site.train for site in self.sites})

    def wrong(self) -> str:
        """What must not be, in words."""
        took = {site.name: site.took for site in self.sites}
        if {"network", "group"} <= set(took.values()):
            return f"both results were taken: {took}"
        if self.in_vain:
            return "a sum was begun to which not all come"
        if "group" in took.values():  # who cannot ask the store, or does not know the end, does not go on
            others = [site.name for site in self.sites if not (site.took or site.open or site.store.cut is not False)]
            return f"{', '.join(others)} have given up what others took: {took}" if others else ""
        return ""


HISTORIES = 200


def test_no_history_has_both_results_of_a_round_or_a_result_at_some_only():
    ends = set()
    for seed in range(HISTORIES):
        history = History(seed)
        assert not history.wrong(), (seed, history.wrong())
        ends.add(tuple(site.took for site in history.sites))
    assert ("group",) * 3 in ends and ("",) * 3 in ends and ("network",) * 3 in ends, "all of them happen"


def _eager_promise(ballot, attempt, end):
    ballot.store.set(f"0/{attempt.number}/promise/{ballot.site}", "1")
    return True


def _own_sum_is_enough(ballot, attempt, digest, end):
    return True


def _no_register(ballot, attempt, what, wanted):
    ballot.store.set(f"0/{attempt.number}/{what}", wanted.decode())
    return wanted != NO


@pytest.mark.parametrize(
    ("of", "part", "without"),
    [
        (Ballot, "_all_promise", _eager_promise), (Ballot, "all_have", _own_sum_is_enough),
        (Ballot, "_decide", _no_register), (Attempt, "say", lambda attempt: True),
    ],
)  # fmt: skip
def test_without_a_part_of_the_agreement_a_history_goes_wrong(monkeypatch, of, part, without):
    monkeypatch.setattr(of, part, without)
    assert any(History(seed).wrong() for seed in range(10 * HISTORIES))


# --- one site's part, over gloo in this process ---


@pytest.fixture
def rescues():
    """The parts of three sites, whose groups were made by hand."""
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    stores += [dist.TCPStore("127.0.0.1", stores[0].port, is_master=False, wait_for_workers=False) for _ in NAMES[1:]]

    def made(rank: int) -> Rescue:
        group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", stores[rank]), rank, len(NAMES))
        return Rescue(Fallback(group, stores[rank]), NAMES[rank])

    return together(made, range(len(NAMES)))


def together(act, each) -> list:
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return list(pool.map(act, each))


def averaged(rescue: Rescue, round_: int, members=NAMES, seconds: float = SECONDS):
    """The mean and the weights, or the words with which this site is late."""
    site = NAMES.index(rescue.ballot.site)
    try:
        values = np.full(1000, site + 1.0, np.float32)
        mean, weights = rescue.average(
            values, round_, float(site + 1), seconds=seconds, late=Late("no result"), members=members
        )
    except Late as late:
        return str(late)
    assert np.array_equal(mean, np.full(1000, mean[0])) and mean[0] == pytest.approx(14 / 6)
    return float(mean[0]), weights


def test_all_sites_get_the_weighted_mean_over_the_group_and_say_so(rescues, caplog):
    found = together(lambda rescue: averaged(rescue, 7), rescues)
    assert found == [(found[0][0], (1.0, 2.0, 3.0))] * 3
    assert "round 7 was done over torch.distributed, by a, b, c" in caplog.text


def test_a_site_that_has_the_networks_result_keeps_it_and_the_others_are_late_at_once(rescues):
    rescues[0].took(3)
    for words in together(lambda rescue: averaged(rescue, 3), rescues[1:]):
        why = words.removeprefix("no result; nor over torch.distributed: ")
        assert why in {"a has the result of the network", "another site could not do it"}
    assert all(type(found) is tuple for found in together(lambda rescue: averaged(rescue, 4), rescues)), "the next one"


def test_who_does_not_give_the_round_up_is_named(rescues):
    assert averaged(rescues[0], 3, seconds=0.2) == (
        "no result; nor over torch.distributed: b, c did not give up the round over the network"
    )


def test_with_a_site_that_is_not_in_the_group_nobody_falls_back(rescues):
    def one(rescue: Rescue):
        return averaged(rescue, 3, (*NAMES, "stranger") if rescue is rescues[0] else NAMES)

    words = together(one, rescues)
    assert "stranger trains, too, and is not in its process group" in words[0]
    assert all("cannot use the group any more" in each or "could not do it" in each for each in words[1:])


def test_a_site_that_does_not_know_how_a_round_ended_asks_before_it_goes_on(rescues, monkeypatch):
    real = Ballot.all_have

    def cut_off(ballot, attempt, digest, end):
        if ballot is not rescues[2].ballot:
            return real(ballot, attempt, digest, end)
        keys = f"{attempt.round}/{attempt.number}/have/c"
        ballot.store.set(keys, digest.hex())
        raise RuntimeError("the store's host is cut off")

    monkeypatch.setattr(Ballot, "all_have", cut_off)
    found = together(lambda rescue: averaged(rescue, 3), rescues)
    assert found[0] == found[1] == (found[0][0], (1.0, 2.0, 3.0)), "all have said that they have the sum"
    assert "its store does not answer" in found[2]
    with monkeypatch.context() as without:
        without.setattr(Ballot, "ask", lambda ballot, attempt: (_ for _ in ()).throw(RuntimeError("still cut off")))
        with pytest.raises(Late, match=r"whether round 3 was done over torch\.distributed is not known"):
            rescues[2].left_open(3)
    mean, weights = rescues[2].left_open(3)
    assert (float(mean[0]), weights) == found[0], "and then it takes what the others have"
    assert rescues[2].left_open(3) is None


def test_sites_of_one_name_are_refused():
    store = dist.HashStore()

    def made(rank: int) -> str:
        group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, 2)
        with pytest.raises(OverlayError) as caught:
            Rescue(Fallback(group, store), "paris")
        return str(caught.value)

    assert "must be different sites, not paris, paris" in together(made, range(2))[0]
    with pytest.raises(OverlayError, match=r"give Fallback\(group, store\)"):
        init("127.0.0.1:1", "paris", fallback=dist.ProcessGroupGloo(dist.HashStore(), 0, 1))


# --- what the network of sites does for it ---


def test_a_site_with_a_group_does_no_round_alone_while_others_live():
    policy = SiteRounds(SiteNetwork(64), sites=2, patience=1.0, sending=Sending(chunk_values=64))
    for name in "ab":
        assert policy.admit(name) is None and policy.activate(name) is None
    policy.begin_at(0)
    assert not policy.handle(Ready("a", 128, 1, 0, "sum", alone=False), 0.0)
    assert not policy.handle(Tick(), 5.0), "with patience=1 a site without a group would go on alone"
    (order,) = policy.handle(Lost("b"), 6.0)
    assert isinstance(order, Start) and order.task.participants == ("a",)


def test_sites_that_did_a_round_in_another_way_take_part_again():
    """Else who was not in the network's last attempt would have to take a state that it has already, and its part of a
    round would be lost."""
    with coordinating(3, probe_seconds=0) as (coordinator, lines):
        groups = begun(coordinator, "abc")
        averaged_over_network(groups, 0)
        coordinator.policy.active.discard("c")  # as if a and b had tried round 1 without it
        for group in groups.values():
            group.offer(state(9), 2)  # they have done round 1 over a process group
        until(lambda: coordinator.policy.active == set("abc"))
        assert "c takes part again: it has the others' state" in lines
        assert averaged_over_network(groups, 2)["c"][1].sites == ("a", "b", "c")
        for group in groups.values():
            group.close()


def test_a_round_that_breaks_at_once_is_done_again_after_pauses(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(group_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(group_module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    tried = []

    def synchronise(tensor, timeout, about):
        tried.append(now[0])
        now[0] += 0.01
        raise PeerLost("a and b cannot reach each other")

    agent = SimpleNamespace(node="a", synchronise=synchronise)
    with pytest.raises(Late, match="cannot reach each other"):
        SiteGroup(agent, timeout=60.0).average(np.ones(8, np.float32), round=0)
    assert tried[1] - tried[0] == pytest.approx(0.01), "once at once"
    assert 40 < len(tried) < 80 and now[0] <= 60.0, "and then not hundreds of times a second"


def test_a_site_for_which_a_round_under_way_did_not_wait_falls_back_with_the_others(rescues):
    """The site is late when the others try the round once more, and that attempt fails: none of them has done a round
    that the site has not done."""
    policy = SiteRounds(SiteNetwork(64), sites=3, sending=Sending(chunk_values=64))
    for name in NAMES:
        assert policy.admit(name) is None and policy.activate(name) is None
    policy.begin_at(3)

    def ready(name: str, now: float) -> list:
        return list(policy.handle(Ready(name, 128, 1, 3, "sum", within=8.0 - now, alone=False), now))

    assert not ready("a", 7.9) and not ready("b", 7.9)
    (start,) = policy.handle(Tick(), 7.99)
    assert isinstance(start, Start) and start.task.participants == ("a", "b")
    policy.handle(Lost("a", "b"), 7.991)
    (refused,) = ready("c", 7.992)
    assert refused.behind == 3

    def one(rescue: Rescue):
        def synchronise(tensor, timeout, about):
            raise Behind(refused.reason, refused.behind) if site == "c" else PeerLost("a and b cannot reach each other")

        site = rescue.ballot.site
        service = SimpleNamespace(members=lambda: list(NAMES), did=lambda round_, sites: None)
        agent = SimpleNamespace(node=site, synchronise=synchronise, site=service)
        values = np.full(8, NAMES.index(site), np.float32)
        averaged = SiteGroup(agent, timeout=1.0, rescue=rescue).average(values, round=3)
        return averaged.fell_back, values[0]

    assert together(one, rescues) == [(True, 1.0)] * 3


def test_a_site_that_others_are_ahead_of_takes_their_state_at_once(rescues):
    def synchronise(tensor, timeout, about):
        raise Behind("the others are before round 4", 4)

    group = SiteGroup(SimpleNamespace(node="a", synchronise=synchronise), timeout=60.0, rescue=rescues[0])
    with pytest.raises(Behind):
        group.average(np.ones(8, np.float32), round=3)


# --- processes ---


class Gate:
    """Where a site is reached by the others: it passes everything on, or nothing. address: the site's own."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", free_port())
        self.open = True
        self._passing: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._server.accept()
            except OSError:
                return
            if not self.open:
                one.close()
                continue
            other = socket.create_connection(self.address)
            self._passing += [one, other]
            for ends in ((one, other), (other, one)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()

    def shut(self) -> None:
        """Nothing passes any more, and what is connected is cut."""
        self.open = False
        for each in self._passing:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._server.close()


def test_training_goes_on_over_gloo_while_sites_do_not_reach_each_other_and_then_without_it(tmp_path):
    """The three sites are cut off from each other when they have the first state, for two rounds. What comes out is as
    if nothing had happened.
    """
    rounds, timeout = 4, 8.0
    with ExitStack() as stack:
        coordinator, log = stack.enter_context(coordinating(SITES, probe_seconds=0.0))
        gates = [Gate() for _ in range(SITES)]
        common = {
            "coordinator": f"127.0.0.1:{coordinator.address[1]}", "sites": SITES, "port": free_port(),
            "timeout": timeout, "rounds": rounds,
            "options": {"every": EVERY, "rate": 0.7, "momentum": 0.9, "bits": 32},
        }  # fmt: skip
        processes, channels = [], []
        for site, gate in enumerate(gates):
            stack.callback(gate.close)
            order = common | {
                "site": site, "listen": "{}:{}".format(*gate.address), "advertise": f"127.0.0.1:{gate.port}",
                "out": str(tmp_path / f"{site}.npz"), "errors": str(tmp_path / f"{site}.log"),
            }  # fmt: skip
            ours, theirs = PROCESSES.Pipe()
            processes.append(PROCESSES.Process(target=site_fallback.main, args=(order, theirs), daemon=True))
            channels.append(ours)
            processes[-1].start()
            stack.callback(processes[-1].kill)
            theirs.close()

        def said_by_all() -> list[dict]:
            assert all(channel.poll(SECONDS) for channel in channels), log
            try:
                return [channel.recv() for channel in channels]
            except EOFError:  # a site's process has ended
                words = [(tmp_path / f"{site}.log").read_text() for site in range(SITES)]
                raise AssertionError("\n".join([*words, *log])) from None

        def go_on() -> None:
            for channel in channels:
                channel.send("go on")

        assert said_by_all() == [{"round": 0}] * SITES
        for gate in gates:
            gate.shut()
        go_on()
        fell_back = []
        for round_ in range(rounds):
            said = said_by_all()
            assert all(each == said[0] for each in said), f"all sites take the same way: {said}"
            assert said[0]["sites"] == tuple(f"site{k}" for k in range(SITES)) and said[0]["round"] == round_ + 1
            fell_back.append(said[0]["fell_back"])
            for gate in gates:
                gate.open = round_ >= 1
            go_on()
        for process in processes:
            process.join(SECONDS)
    warnings = [(tmp_path / f"{site}.log").read_text() for site in range(SITES)]
    assert fell_back[:2] == [True, True] and not fell_back[-1]
    assert all("round 0 was done over torch.distributed, by site0, site1, site2" in each for each in warnings)
    wanted = Reference(fragments=1, delay=0, mixing=0.0, rate=0.7, momentum=0.9, bits=32).train(rounds, EVERY)
    ours = [np.load(tmp_path / f"{site}.npz") for site in range(SITES)]
    for site in range(SITES):
        np.testing.assert_allclose(ours[site]["model"], wanted[site], rtol=2e-5, atol=2e-6)
        assert np.array_equal(ours[site]["shared"], ours[0]["shared"])
