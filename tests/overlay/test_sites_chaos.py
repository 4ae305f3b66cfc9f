"""Sites that are killed and come back with an old state, at random, and a coordinator that is restarted: every mean is
exactly that of those who took part, and all sites that are before a round have the same state."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from overlay.core.errors import Behind, OverlayError
from overlay.core.site_network import SiteNetwork
from overlay.sites import SiteGroup, init
from overlay.sites.command import SiteSettings, make_coordinator
from tests.overlay.test_agents import until

NAMES = ("a", "b", "c", "d", "e")
VALUES = 3000
ROUNDS = 25


class Site:
    """A site that trains: its state is the sum of all means so far, so it shows when one is missing or came twice."""

    def __init__(self, name: str, port: int, world: World) -> None:
        self.name, self.port, self.world, self.rng = name, port, world, random.Random(name)
        self.group: SiteGroup | None = None
        self.thread = threading.Thread(target=self.guarded, daemon=True)
        self.thread.start()

    def guarded(self) -> None:
        try:
            while not self.world.over.is_set():
                self.live()
        except OverlayError as error:
            if not self.world.over.is_set():  # else the others have left
                self.world.wrong.append(f"{self.name}: {type(error).__name__}: {error}")
                self.world.over.set()
        except Exception as error:
            self.world.wrong.append(f"{self.name}: {type(error).__name__}: {error}")
            self.world.over.set()

    def live(self) -> None:
        """From a start with an empty state until it is killed."""
        group = init(f"127.0.0.1:{self.port}", self.name, listen="127.0.0.1:0", timeout=40.0)
        assert group is not None
        self.group = group
        try:
            if self.world.over.is_set():
                return
            data, number = self.taken(group, np.zeros(VALUES * 4, np.uint8), 0)
            while not self.world.over.is_set():
                if self.rng.random() < 0.04:
                    return  # killed
                if self.world.patience is not None and self.rng.random() < 0.1:
                    self.world.over.wait(2 * self.world.patience)
                own = np.full(VALUES, float(number * 10 + ord(self.name)), np.float32)
                try:
                    found = group.average(own, round=number, bits=self.world.bits)
                except Behind:
                    data, number = self.taken(group, data, number)
                    continue
                wanted = np.mean([number * 10 + ord(name) for name in found.sites])
                if not np.allclose(own, wanted, rtol=1e-6 if self.world.bits == 32 else 5e-3):
                    self.world.wrong.append(f"{self.name}, round {number}: {own[0]} of {found.sites}, not {wanted}")
                data = (data.view(np.float32) + own).view(np.uint8)
                number += 1
                group.offer(data, number)
                self.world.saw(number, data.tobytes(), self.name)
        finally:
            group.agent.close()

    def taken(self, group, data: np.ndarray, number: int) -> tuple[np.ndarray, int]:
        state = group.agree(data, number)
        self.world.saw(state.round, state.data.tobytes(), self.name)
        return state.data, state.round


class World:
    """over: the test ends. wrong: what must not be, in words."""

    def __init__(self, bits: int, patience: float | None) -> None:
        self.patience = patience
        self.bits, self.over, self.wrong = bits, threading.Event(), list[str]()
        self.states: dict[int, bytes] = {}
        self.furthest = 0
        self._lock = threading.Lock()

    def saw(self, number: int, data: bytes, name: str) -> None:
        with self._lock:
            if self.states.setdefault(number, data) != data:
                self.wrong.append(f"{name} has another state before round {number} than a site before")
            self.furthest = max(self.furthest, number)


@pytest.mark.parametrize(("bits", "patience"), [(32, None), (8, 0.05)])
def test_no_sum_is_wrong_whoever_comes_and_goes(bits, patience):
    world = World(bits, patience)
    lines: list[str] = []

    def coordinator(port: int):
        network = SiteNetwork(256)
        return make_coordinator("127.0.0.1", port, SiteSettings(3, patience, 0.0), network, log=lines.append)

    first = coordinator(0)
    sites = [Site(name, first.address[1], world) for name in NAMES]
    try:
        until(lambda: world.furthest >= ROUNDS // 2 or world.over.is_set())
        first.close()
        second = coordinator(first.address[1])
        before = world.furthest
        try:
            until(lambda: world.furthest >= before + ROUNDS // 2 or world.over.is_set())
            world.over.set()
            for site in sites:
                if site.group is not None:
                    site.group.agent.close()
                site.thread.join(60)
        finally:
            second.close()
    finally:
        world.over.set()
        first.close()
    assert not world.wrong, world.wrong + lines[-20:]
    assert any("is lost" in line or "has left" in line or "cannot be reached" in line for line in lines)
