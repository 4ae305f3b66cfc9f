"""Hosts measure what they add: a parameter server by what it did while it was busy, and the switch of a host that adds
inside of trees by a trial."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import pytest

from worker_agent.adding import Busy, OfSwitch, switch_adds_mbps

MBYTE = 10**6


def test_an_engine_says_what_it_adds_only_from_what_it_did_while_it_was_busy():
    busy = Busy()
    assert busy.note(0, 0.0, 10.0, threads=1) == 0.0
    assert busy.note(25 * MBYTE, 0.3, 11.0, threads=1) == 0.0, "three tenths of the time: what wakes it costs most"
    assert busy.note(75 * MBYTE, 1.1, 12.0, threads=1) == 500.0, "50 MB in 0.8 s of a processor, of one second"
    assert busy.note(75 * MBYTE, 1.1, 30.0, threads=1) == 500.0, "it does nothing, and what was seen still holds"
    assert busy.note(100 * MBYTE, 1.4, 30.25, threads=1) == 500.0, "the pause before belongs to this"
    assert busy.note(150 * MBYTE, 1.8, 31.0, threads=1) == 1000.0


def test_a_slow_moment_counts_for_half_of_the_best_and_only_until_the_next():
    """The plan is then for 400 Mbit/s. Threads that can do 800 are busy for half of the time with that."""
    busy = Busy()
    busy.note(0, 0.0, 1.0, threads=1)
    assert busy.note(100 * MBYTE, 1.0, 2.0, threads=1) == 800.0
    assert busy.note(105 * MBYTE, 2.0, 3.0, threads=1) == 400.0, "40 Mbit/s were seen"
    assert busy.note(155 * MBYTE, 2.5, 4.0, threads=1) == 800.0


def test_each_thread_is_to_have_a_processor():
    busy = Busy()
    busy.note(0, 0.0, 1.0, threads=4)
    assert busy.note(50 * MBYTE, 1.0, 2.0, threads=4) == 0.0, "a quarter of its threads' time"
    assert busy.note(150 * MBYTE, 5.0, 3.0, threads=4) == 800.0


def test_an_engine_that_was_made_anew_counts_from_there():
    busy = Busy()
    busy.note(500 * MBYTE, 9.0, 1.0, threads=1)
    assert busy.note(0, 0.0, 2.0, threads=1) == 0.0
    assert busy.note(100 * MBYTE, 1.0, 3.0, threads=1) == 800.0


@pytest.mark.skipif(find_spec("softswitch") is None, reason="softswitch is not installed")
def test_the_switch_of_a_host_is_tried():
    """The trial itself checks that every chunk became one sum."""
    switch = OfSwitch()
    switch.mbps(64)
    switch.wait()
    assert switch.mbps(64) == switch_adds_mbps(64) > 10


def test_what_cannot_be_tried_is_said_and_not_reported(caplog):
    with caplog.at_level(logging.WARNING):
        assert switch_adds_mbps(99) == 0.0
    assert "not compiled for 99 values a packet" in caplog.text
