"""Two coordinators of sites: killed, cut off, restarted. Training goes on where more than half of the last round's
sites are, and never at two places.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from overlay.core.errors import Behind, OverlayError
from overlay.core.site_network import SiteNetwork
from overlay.core.site_quorum import History, SiteQuorum
from overlay.net import leadership, liveness, membership
from overlay.net.coordinator import Coordinator
from overlay.sites import init
from overlay.sites.command import SiteSettings, make_coordinator
from tests.overlay.test_agents import until
from tests.overlay.test_partition import Wire
from topologies.ports import free_ports

VALUES = 3000
NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Silence is noticed after some seconds."""
    monkeypatch.setattr(membership, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(liveness, "FROZEN_SECONDS", 2.0)
    monkeypatch.setattr(leadership, "GATHER_SECONDS", 1.0)


# --- the rule, without a network ---


class ModelSite:
    """state: the rounds of which it is made, as (round, term). history: as a real site has it."""

    def __init__(self) -> None:
        self.state: tuple[tuple[int, int], ...] = ()
        self.history: History = ()


def act(quorum: SiteQuorum, names: list[str], sites: dict[str, ModelSite], rng: random.Random):
    """A coordinator acts with those that it reaches: it may do some rounds, the last of which may break. Returns the
    states after the rounds that all of their sites have done.
    """
    whole = []
    lead = max(names, key=lambda name: (len(sites[name].state), quorum.term_of(name), name))
    while rng.random() < 0.8:
        part = [name for name in names if rng.random() < 0.9]
        if not part or not quorum.allows(part):
            continue
        for name in part:
            sites[name].state, sites[name].history = sites[lead].state, quorum.history
        number = len(sites[lead].state)
        after = (*sites[lead].state, (number, quorum.term))
        done = part if rng.random() < 0.6 else rng.sample(part, rng.randint(1, len(part)))
        quorum.did(number, part)
        for name in done:
            sites[name].state, sites[name].history = after, quorum.history
        if done != part:
            break
        whole.append(after)
        lead = part[0]
    return whole


def test_what_all_sites_of_a_round_have_done_is_never_done_differently_elsewhere():
    """Sites are divided between two coordinators at random, again and again; rounds break off in the middle."""
    rounds = moves = 0
    for seed in range(1000):
        rng = random.Random(seed)
        sites = {name: ModelSite() for name in "abcdefg"[: rng.randint(2, 7)]}
        longest: tuple[tuple[int, int], ...] = ()
        quorums = [SiteQuorum(contested=True) for _ in range(2)]
        for turn in range(30):
            here = {name: 0 if turn == 0 else rng.randint(0, 1) for name in sites}
            for k in rng.sample(range(2), 2):
                names = [name for name in sites if here[name] == k]
                quorum = quorums[k] = quorums[k] if rng.random() < 0.5 else SiteQuorum(contested=True)
                if not names or (turn and not any(sites[name].history for name in names)):
                    continue
                for name in names:
                    quorum.observe({"node": name, "history": sites[name].history, "term": 2 * turn + k})
                if not quorum.reached_by(names):
                    continue
                quorum.start_term()
                for state in act(quorum, names, sites, rng):
                    assert state[: len(longest)] == longest, f"seed {seed}: {state} after {longest}"
                    longest, rounds, moves = state, rounds + 1, moves + (k != 0)
    assert rounds > 5000 and moves > 100, "the rule lets sites go on"


def test_a_site_that_has_forgotten_does_not_count_unless_all_are_there():
    quorum = SiteQuorum(contested=True)
    history = ((4, 1, ("a", "b", "c")), (5, 1, ("a", "b", "c")))
    quorum.observe({"node": "a", "history": history, "term": 1})
    quorum.observe({"node": "b", "term": 0})
    assert not quorum.reached_by(["a", "b"])
    quorum.observe({"node": "c", "term": 0})
    assert quorum.reached_by(["a", "b", "c"])
    assert quorum.allows(["a", "b"]) and not quorum.allows(["b"])
    assert SiteQuorum(contested=False).allows(["b"]), "nobody else can have the others"


# --- real coordinators, real sites ---


class Training:
    """A site that does one round after the other, in a thread, as an optimiser would. seen: (round, sites) of those
    that it did."""

    def __init__(self, name: str, coordinators: str, wrong: list[str], states: dict[int, bytes]) -> None:
        self.name, self.seen, self.wrong, self.states = name, list[tuple[int, tuple[str, ...]]](), wrong, states
        self.over = threading.Event()
        group = init(coordinators, name, listen="127.0.0.1:0", timeout=90.0)
        assert group is not None
        self.group = group
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()

    def live(self) -> None:
        try:
            state = self.group.agree(np.zeros(4 * VALUES, np.uint8), 0)
            while not self.over.is_set():
                own = np.full(VALUES, float(10 * state.round + ord(self.name)), np.float32)
                try:
                    found = self.group.average(own, round=state.round)
                except Behind:
                    state = self.group.agree(state.data, state.round)
                    continue
                wanted = np.mean([10 * state.round + ord(name) for name in found.sites])
                if not np.allclose(own, wanted, rtol=1e-6):
                    self.wrong.append(f"{self.name}, round {state.round}: {own[0]}, not {wanted}")
                data = (state.data.view(np.float32) + own).view(np.uint8)
                self.seen.append((state.round, found.sites))
                self.group.offer(data, state.round + 1)
                state = type(state)(state.round + 1, "", data)
                self.over.wait(0.02)
        except OverlayError as error:
            if not self.over.is_set():
                self.wrong.append(f"{self.name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        self.over.set()
        self.group.agent.close()
        self.thread.join(30)


def go_on(sites: Mapping[str, Training], names: Sequence[str], wrong: list[str], lines: Sequence[str] = ()) -> None:
    """Wait until the sites of these names, and no others, have done three more rounds together. lines: a log, of which
    the last lines are shown when something is wrong.
    """
    before = {name: len(sites[name].seen) for name in names}

    def done() -> bool:
        seen = [sites[name].seen[before[name] :] for name in names]
        return all(len(each) > 3 and each[-1][1] == names for each in seen)

    until(lambda: wrong or done())
    assert not wrong, [*wrong, *lines[-30:]]


class Rig:
    """Two coordinators that back each other up, and a wire from each site to each of them."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.ports, self.lines = stack, free_ports(2), list[str]()
        self.links = [Wire(("127.0.0.1", port)) for port in self.ports]  # between the coordinators
        self.wires = {(name, k): Wire(("127.0.0.1", self.ports[k])) for name in NAMES for k in range(2)}
        for wire in (*self.links, *self.wires.values()):
            stack.callback(wire.close)
        self.coordinators: list[Coordinator] = [self.start(k) for k in range(2)]
        self.wrong: list[str] = []
        self.sites: dict[str, Training] = {}

    def start(self, k: int) -> Coordinator:
        def log(line: str) -> None:
            self.lines.append(f"{k}: {line}")

        made = make_coordinator(
            "127.0.0.1", self.ports[k], SiteSettings(2, probe_seconds=0.05), SiteNetwork(256),
            backs_up=self.links[1 - k].address, log=log,
        )  # fmt: skip
        self.stack.callback(made.close)
        return made

    def train(self, name: str) -> None:
        where = ",".join("{}:{}".format(*self.wires[name, k].address) for k in range(2))
        self.sites[name] = Training(name, where, self.wrong, {})
        self.stack.callback(self.sites[name].close)

    def goes_on(self, *names: str) -> None:
        go_on(self.sites, names, self.wrong, self.lines)

    def one_history(self) -> None:
        """No round was done by two sets of sites, but for those that broke off at some sites."""
        done: dict[int, set[tuple[str, ...]]] = {}
        for site in self.sites.values():
            for number, sites in site.seen:
                done.setdefault(number, set()).add(sites)
        for number, sets in done.items():
            alike = [sites for sites in sets if all((number, sites) in self.sites[name].seen for name in sites)]
            assert len(alike) <= 1, f"round {number} was done by {alike}"


@contextmanager
def training():
    with ExitStack() as stack:
        rig = Rig(stack)
        for name in NAMES:
            rig.train(name)
        rig.goes_on(*NAMES)
        yield rig
        rig.one_history()


def test_when_the_acting_coordinator_is_killed_the_other_one_goes_on_without_measuring_again():
    with training() as rig:
        acting = next(k for k in range(2) if rig.coordinators[k].active)
        until(lambda: rig.coordinators[1 - acting].desk.surveyed == set(NAMES))  # It has been told.
        rig.coordinators[acting].close()
        until(lambda: rig.coordinators[1 - acting].active)
        rig.goes_on(*NAMES)
        assert not any("measured" in line for line in rig.lines if line.startswith(str(1 - acting))), rig.lines
        rig.coordinators[acting] = rig.start(acting)
        rig.goes_on(*NAMES)
        assert not rig.coordinators[acting].active, "it stands by, though it comes first in the sites' lists"
        rig.coordinators[1 - acting].close()
        rig.goes_on(*NAMES)


def test_in_a_partition_more_than_half_go_on_and_the_others_wait():
    with training() as rig:
        acting = next(k for k in range(2) if rig.coordinators[k].active)
        for link in rig.links:
            link.cut()
        rig.wires["a", 1 - acting].cut()
        for name in ("b", "c"):
            rig.wires[name, acting].cut()
        rig.goes_on("b", "c")
        assert not rig.coordinators[acting].active
        alone = len(rig.sites["a"].seen)
        rig.goes_on("b", "c")
        assert len(rig.sites["a"].seen) == alone
        for wire in (*rig.links, *rig.wires.values()):
            wire.mend()
        rig.goes_on(*NAMES)
