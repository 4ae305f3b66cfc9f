"""Starts trainers as processes."""

from __future__ import annotations

import pytest

from tests.hook import ranks
from tests.support.forked import forks_with

SECONDS = 240
PROCESSES = forks_with("tests.hook.ranks")


class Rank:
    """A process that runs ranks.main, and the messages that it sends."""

    def __init__(self, scenario: str, **arguments) -> None:
        self.connection, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=ranks.main, args=(scenario, theirs, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self):
        try:
            if self.connection.poll(SECONDS):
                return self.connection.recv()
        except EOFError:
            pytest.fail("the rank died")
        self.process.kill()
        return pytest.fail("the rank hangs")

    def result(self) -> dict:
        result = self.receive()
        assert "traceback" not in result, result["traceback"]
        self.process.join(SECONDS)
        return result


def survive_turn(started: list[Rank], in_network: bool) -> None:
    """Let all ranks of the scenario "survive" train until they are in the network, or outside it, with the right
    losses.
    """
    for rank in started:
        rank.connection.send(in_network)
    for rank in started:
        turn = rank.receive()
        assert turn["in_network"] == in_network, turn["said"]
        assert turn["losses"] == pytest.approx(turn["expected"], rel=1e-5)
