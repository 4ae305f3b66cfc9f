"""Agents and coordinators run on uvloop where it is installed."""

import asyncio
import importlib
import sys
from types import SimpleNamespace

import pytest

from overlay.net import loop
from tests.overlay.test_agents import Drawn, running, synchronise


@pytest.fixture
def fresh():
    yield
    importlib.reload(loop)


def test_without_uvloop_it_is_asyncios(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    made = importlib.reload(loop).new_event_loop()
    assert type(made).__module__.startswith("asyncio")
    made.close()


def test_uvloops_is_taken_where_it_is_there(fresh, monkeypatch):
    made: list[asyncio.AbstractEventLoop] = []

    def new_event_loop() -> asyncio.AbstractEventLoop:
        made.append(asyncio.new_event_loop())
        return made[-1]

    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=new_event_loop))
    assert importlib.reload(loop).new_event_loop() is made[0]
    made[0].close()


def test_agents_add_up_on_uvloop():
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    nodes = ("a", "b", "c")
    with running(Drawn(nodes, 2)) as (_, agents):
        assert type(agents["a"].loop).__module__.startswith("uvloop")
        for seed in range(3):
            synchronise(agents, 10_000 + seed, seed)
