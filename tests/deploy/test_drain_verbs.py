"""`inart drain` and `undrain`: an operator knows when a switch, a link or a parameter server can be unplugged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest

from controlplane.cli import controller, drain
from controlplane.cli.controller import main as operate
from controlplane.planner.job import Job
from tests.deploy.memory_network import RACKS, MemoryNetwork

A = Job("A", ("h1", "h4"), ("h2", "h5"), 10**6)
B = Job("B", ("h3", "h6"), ("h2",), 10**6)
C = Job("C", ("h3", "h6"), ("h5",), 10**6)
Order = Callable[..., int]


@pytest.fixture
def order(address: str) -> Order:
    return lambda *words: operate([*words, "--controller", address])


def passes(rig: MemoryNetwork, part: str) -> bool:
    """Return whether an entry of any job is on this switch."""
    return bool(rig.targets[part].rules.labels)


def a_spine_in_use(rig: MemoryNetwork) -> str:
    return next(v for v in RACKS.switches if v.startswith("s") and passes(rig, v))


def test_a_drained_switch_is_empty_and_used_again_after_undrain(rig, order, capsys, until):
    rig.add(replace(A, parameter_servers=("h2",)))
    rig.add(C)
    spine = a_spine_in_use(rig)
    assert order("drain", spine, "--wait") == 0
    assert capsys.readouterr().out == f"{spine} is empty; safe to unplug\n"
    assert not passes(rig, spine)
    until(rig.as_wanted, "nothing is left of what was between")
    assert order("drain", spine, "--wait", "--json") == 0, "a second time says the same"
    assert json.loads(capsys.readouterr().out) == {"parts": [spine], "empty": True, "uses": []}
    assert order("undrain", spine) == 0
    assert capsys.readouterr().out == f"{spine}: plans may use it again\n"
    assert not rig.network.state.off
    assert order("undrain", spine) == 1
    assert f"{spine} is not disabled" in capsys.readouterr().err


def test_an_operator_waits_for_no_plan_where_jobs_can_be_rerouted(rig, order, capsys, until, monkeypatch):
    """On a busy machine a plan takes a quarter of a minute. It is made all the same, after the answer."""
    jobs = [rig.add(replace(A, parameter_servers=("h2",))), rig.add(C)]
    spine = a_spine_in_use(rig)
    answered, planned = Event(), []
    for job in jobs:
        migrate = job.migrator.migrate

        def late(*given: Any, migrate: Any = migrate, name: str = job.name, **more: Any) -> Any:
            assert answered.wait(60)
            planned.append(name)
            return migrate(*given, **more)

        monkeypatch.setattr(job.migrator, "migrate", late)
    assert order("drain", spine, "--wait") == 0 and order("undrain", spine) == 0
    assert f"{spine} is empty; safe to unplug" in capsys.readouterr().out and not planned
    answered.set()
    until(lambda: set(planned) == {"A", "C"}, "both are replanned")


@pytest.mark.parametrize("what", ["link", "parameter server"])
def test_a_link_and_a_parameter_server_are_drained_alike(rig, order, capsys, what):
    rig.add(A)
    part = f"{RACKS.access_switch('h1')}-{a_spine_in_use(rig)}" if what == "link" else "h2"
    assert order("drain", part, "--wait") == 0
    assert f"{part} is empty" in capsys.readouterr().out
    assert not list(rig.network.uses([part]))
    assert order("undrain", part) == 0


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("leaf", "hang on no other switch"),
        ("link", "it is the only link of h1"),
        ("server", "no parameter server left: h2"),
        ("worker", "is a worker of job"),
        ("nothing", "the network has no switch, link"),
    ],
)
def test_what_cannot_move_is_said(rig, order, capsys, part, why):
    """The only switch and the only link of a worker, the only parameter server, and what is not there."""
    rig.add(B if part == "server" else A)
    leaf = RACKS.access_switch("h1")
    name = {"leaf": leaf, "link": f"{leaf}-h1", "server": "h2", "worker": "h1"}.get(part, part)
    assert order("drain", name, "--wait") == 1
    said = capsys.readouterr().err
    assert why in said
    if part in ("leaf", "link"):
        assert (
            f"{name} cannot be unplugged: still in use by" in said and f"inart undrain {name} takes that back" in said
        )
        assert order("drain", name) == 0, "without --wait that is no error"
        assert "still in use by" in capsys.readouterr().out
        assert order("undrain", name) == 0
    assert not rig.network.state.off


def test_a_network_without_jobs_is_drained_at_once(rig, order, capsys):
    assert order("drain", "s1", "--wait") == 0
    assert capsys.readouterr().out == "s1 is empty; safe to unplug\n"
    assert list(rig.network.state.off) == ["s1"]
    assert order("undrain", "s1") == 0
    assert not rig.network.state.off


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_an_operator_waits_no_longer_than_asked_for_a_controller_that_is_silent(silent, capsys, monkeypatch, verb):
    monkeypatch.setattr(drain, "STATUS_SECONDS", 600.0)
    ends: list[int] = []
    monkeypatch.setattr(controller, "REPLAN_SECONDS", 0.1)
    words = [verb, "s1", "--controller", silent]
    waiting = Thread(target=lambda: ends.append(operate(words)), daemon=True)
    waiting.start()
    waiting.join(30)
    assert ends == [1]
    assert "it accepts connections but does not answer" in capsys.readouterr().err
