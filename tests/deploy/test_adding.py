"""A job that is added while one of two controllers takes over from the other: it is there once, or was never there.

Both are real controllers in this process, over one store and the same switches. The first one dies at a chosen step of
what `add_job` makes it do; the second one leads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, NoAnswer, ask
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.terms import Terms
from controlplane.service import controller as serving
from controlplane.service.controller import Controller
from controlplane.service.network import Network
from controlplane.service.pair.leadership import Leadership
from controlplane.service.pair.shared_state import SharedEpochs, SharedState
from controlplane.service.room import found
from controlplane.service.state import Kept
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from p4src.artifacts import find
from tests.support.memory import MemoryTarget
from tests.support.memory_store import MemoryStore
from topologies.ports import free_ports
from worker_agent.launch import adding

NETWORK = leaf_spine(2, 2, 3, 300.0)


class One:
    """One of two controllers. It leads as soon as the other one does not."""

    def __init__(self, folder: Path, store: MemoryStore, name: str, port: int, targets: list[MemoryTarget]) -> None:
        self.log: list[str] = []
        with ExitStack() as stack:
            self.leadership = Leadership(store, name, self.log.append, after=60.0)
            log = calling(self.log.append)
            assert self.leadership.wait(Event(), log)
            stack.callback(self.leadership.end)
            state = stack.enter_context(SharedState(folder / name, self.leadership))
            epochs = SharedEpochs(folder / name, self.leadership)
            kind = P4RuntimeKind(find("v1model", 4))
            self.network = Network(
                NETWORK, kind, targets, epochs=epochs, labels=epochs.labels(), found=found(targets), log=log
            )
            stack.callback(self.network.close)
            network = self.network
            network.start(state.load())
            kept = Kept(state, network.keeps, log)
            network.changed, network.unkept = kept.save, kept.problem
            self.controller = Controller(self.network, log=log)
            bound = serving.listen(f"127.0.0.1:{port}")
            self.server, _ = bound
            self.controller.start(bound)
            stack.callback(self.controller.stop)
            self.close = stack.pop_all().close


class Died(BaseException):
    """Ends the thread that was carrying an order out, as the end of its process would."""


class Pair:
    """The first controller leads; `at` has it die at a step, and the second one lead."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, MemoryStore()
        self.targets = [MemoryTarget(name) for name in NETWORK.switches]
        self.ports = free_ports(2)
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.ones = [One(folder, self.store, "a", self.ports[0], self.targets)]

    def at(self, owner: Any, name: str, *, after: bool) -> None:
        """The first controller dies before, or after, it does this for the first time."""
        first, does = self.ones[0], getattr(owner, name)

        def dies(*given: Any, **named: Any) -> Any:
            if len(self.ones) > 1:
                return does(*given, **named)
            if after:
                does(*given, **named)
            first.leadership.end()
            self.ones.append(One(self.folder, self.store, "b", self.ports[1], self.targets))
            first.server.stop(None).wait()  # its connections end
            raise Died

        setattr(owner, name, dies)

    def close(self) -> None:
        for one in self.ones:
            one.close()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(serving, "STOP_SECONDS", 0.1)
    made = Pair(tmp_path)
    yield made
    for one in made.ones:
        print("\n".join(one.log))
    made.close()


def request(name: str) -> pb.AddJobRequest:
    return pb.AddJobRequest(job=f"name={name}", hosts=[pb.Host(name="h1"), pb.Host(name="h4")])


STEPS: dict[str, Callable[[Pair], None]] = {
    "before it plans": lambda pair: pair.at(pair.ones[0].network, "launch", after=False),
    "before it writes to switches": lambda pair: pair.at(pair.ones[0].network, "install", after=False),
    "before the job is in the store": lambda pair: pair.at(pair.ones[0].network, "install", after=True),
    "when the job is in the store": lambda pair: pair.at(pair.ones[0].network, "run", after=True),
    "before it answers": lambda pair: pair.at(pair.ones[0].network, "launch", after=True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_job_is_added_once_whenever_the_leader_dies(pair: Pair, step: str) -> None:
    STEPS[step](pair)
    reply = adding.add(pair.address, "mine", request("mine"))
    assert reply.workers == ["h1", "h4"] and len(pair.ones) == 2
    (job,) = pair.ones[1].network.jobs
    assert job.name == "mine" and job.job_id == reply.job_id
    assert pair.ones[1].network.switches.jobs() == [job.job_id]


def test_what_a_job_was_promised_is_in_the_store_as_soon_as_the_job_is(pair: Pair) -> None:
    """The leader dies at the first moment at which the store has the job: the next one knows its terms, too, and does
    not take the job for one that was only half added."""
    network = pair.ones[0].network
    keep = network.changed

    def dies() -> None:
        keep()
        if len(pair.ones) == 1 and len(network.jobs):
            pair.ones[0].leadership.end()
            pair.ones.append(One(pair.folder, pair.store, "b", pair.ports[1], pair.targets))
            raise Died

    network.changed = dies
    with pytest.raises(Died):
        network.launch(Job("mine", ("h1", "h4"), ("h5",), 10**6), "inart", terms=Terms(2.0, 5.0, 1))
    (job,) = pair.ones[1].network.jobs
    assert job.terms == Terms(2.0, 5.0, 1)
    assert pair.ones[1].network.replanning.fair, "terms are of no use to jobs that are not planned together"
    with SharedState(pair.folder / "look", pair.ones[1].leadership) as state:
        assert state.load().begun == []


def test_what_is_refused_is_not_asked_again(pair: Pair) -> None:
    """The other one is not asked, and nothing is taken off that runs under this name."""
    adding.add(pair.address, "mine", request("mine"))
    with pytest.raises(ControllerError, match="a job named 'mine' runs already") as refused:
        adding.add(pair.address, "mine", request("mine"))
    assert not isinstance(refused.value, NoAnswer)
    assert [job.name for job in pair.ones[0].network.jobs] == ["mine"]


def test_an_order_that_nobody_has_answered_is_told_from_a_refusal(pair: Pair) -> None:
    pair.at(pair.ones[0].network, "launch", after=False)
    with pytest.raises(NoAnswer):
        ask(pair.address, "add_job", request("mine"))
    pair.ones[1].controller.stop()
    with pytest.raises(NoAnswer, match="none of the controllers"):
        ask(pair.address, "add_job", request("mine"))
