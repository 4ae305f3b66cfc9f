"""A job under chaos: real agents in their hosts, which do all-reduces all the time, whatever happens to them."""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from contextlib import suppress
from typing import Any

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask, fetch_status
from controlplane.planner.job import Job
from evaluation.chaos.controller import dead, eventually
from evaluation.chaos.harness import Place
from evaluation.chaos.worker import HERE
from topologies.agents import HOSTS
from topologies.network import EmulationError
from topologies.zygote import HostFailure, HostProcess

ADD_SECONDS = 60.0
PATIENCE = 60.0
"""Seconds without progress after which an operation fails."""
GIVEN_UP_SECONDS = 150.0
"""Seconds after which an operation that is not done has failed for good; the job's agents are then started anew."""
ANSWER_SECONDS = 1e6  # the queue has the timeouts
PAUSE_SECONDS = 0.02
SHARES_OF_A_SECOND = (0.01, 0.05, 0.2)
"""Durations of the all-reduces at the planned rate, in seconds."""


class _Worker:
    """One worker's process, and the thread that receives its messages."""

    def __init__(self, node: str, process: HostProcess, inbox: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.node, self.process, self.joined = node, process, False
        self.killed = False  # by an event
        self.busy = False  # it has an order that it has not answered
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def _listen(self, inbox: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        while True:
            try:
                inbox.put((self, self.process.receive(ANSWER_SECONDS)))
            except HostFailure as error:
                inbox.put((self, error))
                return


class JobRun:
    """One job: after `start`, `begin` runs all-reduces in a thread until `finish`.

    Each operation is one or two all-reduces that all workers start at once. When it fails on one of them, all do it
    again, also those that had its result, since the others begin a new epoch with it. The next operation begins only
    when all workers have the exact sum.

    Args:
        rate_mbps: planned rate, to which the sizes of the all-reduces are fitted.
        outages: whether the times between two all-reduces are findings.
    """

    def __init__(
        self, place: Place, controller: str, job: Job, rate_mbps: float, seed: int, *, outages: bool = True
    ) -> None:
        self.job, self._findings, self._say, self._outages = job, place.findings, place.say, outages
        self._zygote, self.controller = place.zygote, controller
        self._random = random.Random(f"{seed} {job.name}")
        self._sizes = [max(1, int(rate_mbps * 1e6 / 32 * share)) for share in SHARES_OF_A_SECOND]
        self._inbox: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._workers: dict[str, _Worker] = {}
        self._roots: dict[str, HostProcess] = {}
        self._over = threading.Event()
        self._ended = False
        self._until = float("inf")
        self._late: dict[str, tuple[float, threading.Event]] = {}
        self._forks: dict[str, queue.SimpleQueue[list[int | None]]] = {}
        self._thread = threading.Thread(target=self._work, name=job.name, daemon=True)
        self._lock = threading.Lock()
        self.epoch = 0
        self.sequences: dict[str, int] = {}
        """Sequence number of each tree after the last operation, which a forger is told."""

    # -- its processes ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for node in self.job.parameter_servers:
            self._start_root(node)
        for node in self.job.workers:
            self._start_worker(node)

    def wait_joined(self, seconds: float) -> None:
        """Wait until all workers have joined. Raise EmulationError when that takes more than so many seconds."""
        until = time.monotonic() + seconds
        while not all(worker.joined for worker in self._workers.values()):
            try:
                worker, message = self._inbox.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise EmulationError(f"job {self.job.name} does not begin within {seconds:.0f} s") from None
            if isinstance(message, HostFailure):
                raise message
            worker.joined = True

    def begin(self) -> None:
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Begin no more operations. Wait for the one under way, which has failed when it is not done in so many
        seconds.
        """
        self._until = time.monotonic() + seconds
        self._over.set()
        self._thread.join()

    def leave(self, seconds: float) -> None:
        """Let the workers leave the job in good order, after `finish`. Raise EmulationError where one does not leave
        within so many seconds.
        """
        for worker in self._workers.values():
            worker.process.send(None)
        left: set[str] = set()
        while len(left) < len(self._workers):
            try:
                worker, message = self._inbox.get(timeout=seconds)
            except queue.Empty:
                raise EmulationError(f"{self.job.name}: only {sorted(left)} have left after {seconds:.0f} s") from None
            if isinstance(message, HostFailure) and worker.node not in left:
                raise message
            if message is None:  # what the worker's function returns
                left.add(worker.node)

    def abandon(self) -> None:
        """Take nothing that happens from now on for a finding: the job ends in the middle of an operation."""
        self._ended = True
        self._over.set()

    def end(self) -> None:
        self.abandon()
        self._until = 0.0
        for worker in self._workers.values():
            worker.process.end(2.0)
        for process in self._roots.values():
            process.end(2.0)

    def still_running(self) -> list[str]:
        """Return, after `end`, the agents' processes that run nevertheless, in words."""
        processes = [*self._roots.values(), *(worker.process for worker in self._workers.values())]
        return [
            f"a process of {self.job.name} in {process.host}"
            for process in processes
            if process.pid is not None and not eventually(lambda pid=process.pid: dead(pid))
        ]

    def process(self, node: str) -> HostProcess:
        """Return the agent's process that runs on this node now."""
        return self._roots[node] if node in self._roots else self._workers[node].process

    def kill(self, node: str) -> None:
        if node in self._workers:
            self._workers[node].killed = True
        self.process(node).kill()

    def restart(self, node: str) -> None:
        if node in self._roots:
            self._start_root(node)
        else:
            self._start_worker(node)

    def _start_root(self, node: str) -> None:
        arguments = {"controller": self.controller, "job": self.job.name}
        self._roots[node] = self._zygote.spawn(node, f"{HOSTS}:parameter_server", arguments)

    def _start_worker(self, node: str) -> None:
        arguments = {"controller": self.controller, "job": self.job.name, "workers": list(self.job.workers),
                     "patience": PATIENCE}  # fmt: skip
        process = self._zygote.spawn(node, f"{HERE}:run", arguments)
        self._workers[node] = _Worker(node, process, self._inbox)

    # -- what happens to it -------------------------------------------------------------------------------------------

    def make_late(self, node: str, seconds: float) -> threading.Event:
        """Give this worker its next order so many seconds later than the others. The event that is returned is set when
        it has the order.
        """
        sent = threading.Event()
        with self._lock:
            self._late[node] = seconds, sent
        return sent

    def fork(self, node: str, seconds: float) -> None:
        """Have the worker fork children that end so many seconds later, once it is between two operations."""
        self._forks[node] = queue.SimpleQueue()
        self._workers[node].process.send({"fork": seconds})

    def forked(self, node: str, seconds: float) -> list[int | None]:
        """Return how the forked children ended. Raise queue.Empty."""
        self._workers[node].process.send({"forked": True})
        return self._forks[node].get(timeout=seconds)

    # -- its operations -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        number, last = 0, time.monotonic()
        while not self._over.is_set():
            number += 1
            elements = [self._random.choice(self._sizes) for _ in range(self._random.choice((1, 1, 2)))]
            order = {"operation": number, "elements": elements, "seed": self._random.randrange(1 << 30),
                     "seconds": GIVEN_UP_SECONDS}  # fmt: skip
            done = self._operate(order)
            now = time.monotonic()
            if self._outages and not self._ended:
                self._findings.add_gap(self.job.name, last, now)
            if done:
                self._findings.add_sums(len(elements))
                last = now
            elif not self._ended:
                self._give_up(number)
                last = time.monotonic()
            self._over.wait(PAUSE_SECONDS)

    def _operate(self, order: dict[str, Any]) -> bool:
        """Operate until all workers have the sums of this operation, each right or not. Return False where they never
        got them.
        """
        until = time.monotonic() + GIVEN_UP_SECONDS
        done: set[str] = set()
        flagged, ended = False, 0
        for worker in list(self._workers.values()):
            self._order(worker, order)
        while len(done) < len(self.job.workers):
            try:
                worker, message = self._inbox.get(timeout=min(1.0, max(0.0, until - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= min(until, self._until):
                    return False
                continue
            if self._workers.get(worker.node) is not worker:
                continue  # an answer of a process that has been replaced
            if isinstance(message, HostFailure):
                self._gone(worker, message)
                done = self._again(done, order)
            elif "joined" in message:
                worker.joined = True
                done = self._again(done, order)  # workers that have reported a result since the earlier process died
                self._order(worker, order)
            elif "forked" in message:
                self._forks[worker.node].put(message["forked"])
            elif message["operation"] == order["operation"]:
                worker.busy = False
                if message["right"]:
                    self._judge(worker, message)
                    if message["epoch"] > ended:
                        done.add(worker.node)
                    else:
                        self._order(worker, order)
                elif not self._ended:
                    self._findings.add_flagged(message["error"], again=flagged)
                    flagged, ended = True, max(ended, message["ended"])
                    done = self._again(done, order)
                    self._order(worker, order)
        return True

    def _again(self, done: set[str], order: dict[str, Any]) -> set[str]:
        """Have the workers that had the result do the operation again with the others, in what will be a new epoch."""
        for node in done:
            self._order(self._workers[node], order)
        return set()

    def _order(self, worker: _Worker, order: dict[str, Any]) -> None:
        if not worker.joined or worker.busy:
            return
        worker.busy = True
        with self._lock:
            late, sent = self._late.pop(worker.node, (0.0, None))

        def give() -> None:
            with suppress(HostFailure):  # the thread that receives its messages learns that
                worker.process.send(order)
            if sent is not None:
                sent.set()

        if sent is None:
            give()
        else:
            timer = threading.Timer(late, give)
            timer.daemon = True
            timer.start()

    def _judge(self, worker: _Worker, message: dict[str, Any]) -> None:
        self.epoch = message["epoch"]
        self.sequences = message["sequences"]
        for wrong in message["wrong"]:
            at = self._findings.since(time.monotonic())
            what = (
                f"{at:.1f} s: {worker.node} of {self.job.name}: {wrong['values']} of {wrong['of']} values, the first "
                f"is number {wrong['first']}: {wrong['got']:g} instead of {wrong['expected']:g}"
            )
            self._findings.wrong.append(what)
            self._say(f"WRONG: {what}")

    def _gone(self, worker: _Worker, failure: HostFailure) -> None:
        worker.joined = worker.busy = False
        if not worker.killed and not self._over.is_set():
            at = self._findings.since(time.monotonic())
            self._findings.failed.append(f"{at:.1f} s: {worker.node} of {self.job.name} ended by itself: {failure}")
            self._say(f"FAILED: {failure}")
            self._start_worker(worker.node)

    def _give_up(self, number: int) -> None:
        at = self._findings.since(time.monotonic())
        seconds = "in the time that it had at the end" if self._over.is_set() else f"in {GIVEN_UP_SECONDS:.0f} s"
        what = f"{at:.1f} s: operation {number} of {self.job.name} was not done {seconds}: {self.state()}"
        self._findings.failed.append(what)
        if self._over.is_set():
            self._say(f"FAILED: {what}")
            return
        self._say(f"FAILED: {what}; its agents are started anew")
        for node in (*self.job.parameter_servers, *self.job.workers):
            self.kill(node)
            self.restart(node)

    def state(self) -> str:
        """Return the controller's words about the job."""
        try:
            status: pb.StatusReply = fetch_status(self.controller, timeout=5.0, job=self.job.name)
        except (ControllerError, OSError) as error:
            return f"no status: {error}"
        missing = [agent.node for agent in status.agents if not agent.joined]
        lacks = [f"tree {t.tree} (root {t.root}) lacks {', '.join(t.missing)}" for t in status.trees if t.missing]
        words = [f"{status.state}, epoch {status.epoch}, plan {status.plan_version}"]
        words += [f"not joined: {', '.join(missing)}"] if missing else []
        return "; ".join([*words, *lacks, *(event.text for event in status.events[-3:])])


def add_job(place: Place, controller: str, job: Job, seed: int, request: pb.AddJobRequest) -> JobRun:
    """Add a job to the network, and return its run. Raise EmulationError if the controller refuses it."""
    request.job = json.dumps(job.to_json())
    try:
        reply = ask(controller, "add_job", request, timeout=ADD_SECONDS)
    except ControllerError as error:
        raise EmulationError(f"job {job.name} cannot be added: {error}") from error
    there = f"{len(job.workers)} workers, {len(job.parameter_servers)} parameter servers"
    place.say(f"job {job.name}: {there}, {reply.rate_mbps:.4g} Mbit/s")
    return JobRun(place, controller, job, reply.rate_mbps, seed)
