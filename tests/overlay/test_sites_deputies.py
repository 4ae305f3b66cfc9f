"""No coordinator of sites is there: the sites of the last round go on by themselves, and what they have done counts."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from overlay.core import site_quorum
from overlay.core.site_network import SiteNetwork
from overlay.core.site_quorum import DeputyQuorum, History, SiteQuorum, after, alone_among, newer
from overlay.net import deputy, leadership, liveness, membership
from overlay.sites.command import SiteSettings, make_coordinator
from tests.overlay.live_sites import Training, Wire, go_on
from tests.overlay.test_agents import until
from topologies.ports import free_port

# --- the rule, without a network ---

State = tuple[tuple[int, int], ...]
"""The rounds of which a model is made, as (round, term)."""


@dataclass
class ModelSite:
    """joined: whether it is connected to the coordinator."""

    state: State = ()
    history: History = ()
    term: int = 0
    joined: bool = False


@dataclass
class Found:
    """What a random history has had. by_deputies: rounds that were done without a coordinator. wrong: in words."""

    rounds: int = 0
    by_deputies: int = 0
    handed_over: int = 0
    wrong: str = ""
    longest: State = field(default=())


def act(quorum: SiteQuorum, names: list[str], sites: dict[str, ModelSite], rng: random.Random, found: Found) -> None:
    """A coordinator acts with those that it reaches. It does some rounds; one may break off when some sites have it."""
    quorum.start_term()
    alone = isinstance(quorum, DeputyQuorum)
    for name in names:
        sites[name].term = quorum.term
    lead = max(names, key=lambda name: (len(sites[name].state), quorum.term_of(name), name))
    while rng.random() < 0.7:
        part = [name for name in names if alone or rng.random() < 0.8]
        if not part or not quorum.allows(part):
            continue
        for name in part:
            sites[name].state, sites[name].history = sites[lead].state, quorum.history
            quorum.learn(name, quorum.history)
        number = len(sites[lead].state)
        state = (*sites[lead].state, (number, quorum.term))
        done = part if rng.random() < 0.6 else rng.sample(part, rng.randint(1, len(part)))
        quorum.did(number, part)
        for name in done:
            sites[name].state, sites[name].history = state, quorum.history
        lead = done[0]
        if done != part:
            return
        found.rounds, found.by_deputies = found.rounds + 1, found.by_deputies + alone
        if alone_among(quorum.history):
            if state[: len(found.longest)] != found.longest and not found.wrong:
                found.wrong = f"{part} did {state}, and {found.longest} was done before"
            found.longest = state


def history_of_sites(seed: int) -> Found:
    """Sites lose the coordinator and return; it is restarted; sites forget everything. The history ends when the
    coordinator is restarted after a round of fewer than half of the sites of an earlier one: then the highest round of
    the sites that return first counts, and no site may go on without it before most have returned.
    """
    rng, found = random.Random(seed), Found()
    sites = {name: ModelSite() for name in "abcdefg"[: rng.randint(2, 6)]}
    quorum = SiteQuorum()
    for turn in range(25):
        if turn and rng.random() < 0.3:
            newest: History = ()
            for site in sites.values():
                newest = newer(newest, site.history)
            if newest and not alone_among(newest):
                return found
            quorum = SiteQuorum()
            for site in sites.values():
                site.joined = False
        cut = rng.random() < 0.3  # no site reaches the coordinator
        for name, site in sites.items():
            kept = any(other.state[: len(site.state)] == site.state for other in sites.values() if other is not site)
            if rng.random() < 0.03 and kept:  # else its state is lost for good
                sites[name] = site = ModelSite()
            joined = not turn or (not cut and rng.choice([True, site.joined, False]))
            if joined and not site.joined:
                quorum.observe({"node": name, "history": site.history, "term": site.term})
            site.joined = joined
        acting: list[tuple[SiteQuorum, list[str]]] = []
        names = [name for name in sites if sites[name].joined]
        known = not turn or quorum.history or any(sites[name].history for name in names)
        if names and known and quorum.reached_by(names):
            acting.append((quorum, names))
        alone = [name for name in sites if not sites[name].joined]
        for name in alone:
            one = DeputyQuorum(sites[name].history)
            here = [each for each in one.sites if each in alone]
            if here and name == here[0]:
                for each in here:
                    one.observe({"node": each, "history": sites[each].history, "term": sites[each].term})
                if one.reached_by(here) and set(here) <= set(one.sites):
                    acting.append((one, here))
        taken: set[str] = set()
        for one, names in rng.sample(acting, len(acting)):
            if not taken.intersection(names):
                taken.update(names)
                before = found.by_deputies
                act(one, names, sites, rng, found)
                found.handed_over += before > 0 and not isinstance(one, DeputyQuorum)
    return found


def test_sites_that_go_on_without_a_coordinator_are_never_beside_others():
    all_found = [history_of_sites(seed) for seed in range(1000)]
    assert [each.wrong for each in all_found if each.wrong] == []
    assert sum(each.by_deputies for each in all_found) > 1000, "without a coordinator sites go on"
    assert sum(each.handed_over for each in all_found) > 500, "a coordinator goes on from there"


def _one_less(sites: tuple[str, ...], present) -> bool:
    return len(set(sites) - set(present)) <= 1


MUTANTS: dict[str, tuple[type, str, object]] = {
    "a deputy goes on without one of the sites": (DeputyQuorum, "_within", staticmethod(_one_less)),
    "a coordinator that lives asks for nobody in particular": (SiteQuorum, "_vouches", lambda *_: True),
    "a coordinator that was restarted knows nothing of deputies": (SiteQuorum, "contested", False),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_part_of_the_rule_is_needed(mutant, monkeypatch):
    owner, name, other = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, other)
    assert any(history_of_sites(seed).wrong for seed in range(1500))


def test_a_round_of_which_most_sites_are_lost_is_remembered_until_they_are_back(monkeypatch):
    history = after((), 0, 1, ("a", "b", "c", "d"))
    assert alone_among(history) == ("a", "b", "c", "d")
    history = after(history, 1, 1, ("d",))
    for round_ in (2, 3):
        history = after(history, round_, 1, ("d",))
        assert alone_among(history) == (), "a, b and c may be going on with a coordinator that was restarted"
    history = after(history, 4, 1, ("b", "c", "d"))
    assert [round_ for round_, *_ in history] == [3, 4] and alone_among(history) == ("b", "c", "d")
    monkeypatch.setattr(site_quorum, "after", lambda history, *each: (*history[-1:], each))
    assert any(history_of_sites(seed).wrong for seed in range(1500))


def test_a_site_that_has_forgotten_does_not_count_unless_all_are_there():
    quorum = SiteQuorum()
    history = ((4, 1, ("a", "b", "c")), (5, 1, ("a", "b", "c")))
    quorum.observe({"node": "a", "history": history, "term": 1})
    quorum.observe({"node": "b", "term": 0})
    assert not quorum.reached_by(["a", "b"])
    quorum.observe({"node": "c", "term": 0})
    assert quorum.reached_by(["a", "b", "c"])
    assert quorum.allows(["a", "b"]) and not quorum.allows(["b"])
    quorum.did(6, ("a", "b"))
    assert quorum.allows(["b"]), "its process lives, and knows that no other site has gone on elsewhere"


# --- real sites, real coordinators ---


class Rig:
    """Sites that train, and their only coordinator: a process of its own, which is killed."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.config = folder / "site.toml"
        self.config.write_text("[sites]\nprobe_seconds = 0\nchunk = 256\n")
        self.port = free_port()
        self.wrong: list[str] = []
        self.sites: dict[str, Training] = {}
        self.stack = stack
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "inart",
            "site",
            "coordinator",
            "--sites",
            "3",
            "--config",
            str(self.config),
        ]
        process = self.stack.enter_context(
            subprocess.Popen([*command, "--listen", f"127.0.0.1:{self.port}"], stdout=subprocess.PIPE)
        )
        self.stack.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline().startswith(b"waiting for 3 sites")
        return process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def train(self, *names: str) -> None:
        for name in names:
            self.sites[name] = Training(name, f"127.0.0.1:{self.port}", self.wrong)
            self.stack.callback(self.sites[name].close)

    def goes_on(self, *names: str) -> None:
        go_on(self.sites, names, self.wrong)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """A coordinator that is gone is missed after a second, and so is a site that a deputy waits for."""
    monkeypatch.setattr(deputy, "GONE_SECONDS", 1.0)
    monkeypatch.setattr(leadership, "GATHER_SECONDS", 1.0)


def test_the_only_coordinator_is_killed_and_the_rounds_go_on_and_their_numbers_after_its_restart(caplog, tmp_path):
    caplog.set_level("INFO", "inart.sites")
    with ExitStack() as stack:
        rig = Rig(stack, tmp_path)
        rig.train("a", "b", "c")
        rig.goes_on("a", "b", "c")
        rig.kill()
        rig.goes_on("a", "b", "c")
        rig.goes_on("a", "b", "c")
        alone = rig.sites["a"].seen[-1][0]
        rig.process = rig.start()
        rig.train("d")  # Only a coordinator lets a new site in, with the state of the others.
        rig.goes_on("a", "b", "c", "d")
        assert rig.sites["d"].seen[0][0] > alone
        for site in rig.sites.values():
            numbers = [number for number, _ in site.seen]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "each round once, and none left out"

        # One of them is lost, too: the others wait for it, or for a coordinator.
        rig.kill()
        rig.goes_on("a", "b", "c", "d")
        rig.sites["c"].close()
        last = max(number for site in rig.sites.values() for number, _ in site.seen)
        waited = len(caplog.messages)
        until(lambda: sum("only 3 of 4 agents have joined" in line for line in caplog.messages[waited:]) >= 2)
        assert max(number for site in rig.sites.values() for number, _ in site.seen) <= last + 1
        network = SiteNetwork(256)
        with make_coordinator("127.0.0.1", rig.port, SiteSettings(3, probe_seconds=0.0), network):
            rig.goes_on("a", "b", "d")


def test_a_coordinator_that_lives_goes_on_without_a_site_that_is_cut_off_and_sites_without_a_coordinator(monkeypatch):
    """Wires are cut: first that of one site, then those of all. The coordinator's process lives all the time."""
    monkeypatch.setattr(membership, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(liveness, "FROZEN_SECONDS", 2.0)
    names, lines = ("a", "b", "c"), list[str]()
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            make_coordinator("127.0.0.1", 0, SiteSettings(2, probe_seconds=0.0), SiteNetwork(256), log=lines.append)
        )
        wires, wrong, sites = {}, list[str](), dict[str, Training]()
        for name in names:
            wires[name] = Wire(coordinator.address)
            stack.callback(wires[name].close)
            sites[name] = Training(name, "{}:{}".format(*wires[name].address), wrong)
            stack.callback(sites[name].close)
        go_on(sites, names, wrong, lines)
        wires["a"].cut()
        go_on(sites, names[1:], wrong, lines)
        alone = len(sites["a"].seen)
        go_on(sites, names[1:], wrong, lines)
        assert len(sites["a"].seen) == alone, "it waits, though it is the first to coordinate without a coordinator"
        wires["a"].mend()
        go_on(sites, names, wrong, lines)
        for wire in wires.values():
            wire.cut()
        until(lambda: not coordinator.members)
        go_on(sites, names, wrong, lines)
        assert not coordinator.members, "the sites went on without it"
        for wire in wires.values():
            wire.mend()
        until(lambda: len(coordinator.members) == 3)
        go_on(sites, names, wrong, lines)
        done: dict[int, set[tuple[str, ...]]] = {}
        for site in sites.values():
            for number, together in site.seen:
                done.setdefault(number, set()).add(together)
        for number, sets in done.items():
            whole = [each for each in sets if all((number, each) in sites[name].seen for name in each)]
            assert len(whole) <= 1, f"round {number} was done by {whole}"
