"""One agent a node, which all states of a process and all processes of a job on the node share.

    The first process that comes is the agent of its node, and lets the others in (service.py); a claim on an abstract
    socket tells them which process it is. With "unix:/path" the agent is a process of its own for all of them.

A process has one place at the agent, whatever number of states uses it, so that their operations have one order.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from controlplane.common.rpc.tls import Tls
from worker_agent.agent import controller_address
from worker_agent.collectives import Operation
from worker_agent.errors import AgentError, ClaimedError, NotReadyError
from worker_agent.forked import abandon_when_forked
from worker_agent.lane import close_lane
from worker_agent.local import ForeignAgentError, LocalAgent, NoAgentError
from worker_agent.service import AgentSettings, Service
from worker_agent.socket_protocol import Seat, claim_name
from worker_agent.team import Port
from worker_agent.work import Work

RETRY_SECONDS = 0.05

logger = logging.getLogger("inart")


class Reducer(Protocol):
    """The methods of an agent that states need: a Port, a LocalAgent, worker_agent.Agent, or the like."""

    @property
    def world_size(self) -> int: ...

    def allreduce_async(self, array: Any, op: Operation = "sum", *, dtype: str | None = None) -> Work: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """The way to this node's agent; see InArtState for most options.

    Where neither a controller nor an agent is given, $INART_CONTROLLER and $INART_AGENT are used.

    Attributes:
        operation_timeout: seconds without progress after which an operation fails; None or 0: never.
        rank: this process's rank among those on this node.
        size: the number of ranks on this node; 0: not known, so that they are counted (torch/places.py).
        job: a key that the ranks of the job on this node have in common, and no other job has; empty: `job_key`.
    """

    controller: str | None = None
    agent: str | None = None
    node: str | None = None
    interface: str | None = None
    tls: Tls | None = None
    operation_timeout: float | None = None
    rank: int = 0
    size: int = 1
    take_over: bool = False
    job: str = ""

    def resolved(self) -> Options:
        """Return the options, with the environment's controller and agent where they name neither."""
        if self.controller is not None or self.agent is not None:
            return self
        environment = os.environ
        return replace(
            self,
            controller=environment.get("INART_CONTROLLER") or None,
            agent=environment.get("INART_AGENT") or None,
        )


def local_rank() -> tuple[int, int]:
    """Return this process's rank on its node, and the number of ranks there.

    They are torchrun's LOCAL_RANK and LOCAL_WORLD_SIZE, else those of Slurm's step (srun), else 0 of 0: they are not
    known. Raise AgentError when they make no sense.
    """
    environment = os.environ
    if "LOCAL_RANK" in environment and "LOCAL_WORLD_SIZE" in environment:
        words = environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]
    elif "SLURM_LOCALID" in environment and (tasks := _slurm_tasks()):
        words = environment["SLURM_LOCALID"], tasks
    else:
        return 0, 0
    try:
        rank, size = map(int, words)
    except ValueError:
        rank = size = -1
    if not 0 <= rank < size:
        raise AgentError(f"local rank {words[0]} of {words[1]} ranks on this node makes no sense: look at LOCAL_RANK")
    return rank, size


def _slurm_tasks() -> str:
    """Return the number of tasks that Slurm runs on this node; empty if that is not known.

    A step (srun) may have fewer tasks than its job, whose SLURM_NTASKS_PER_NODE it inherits.
    """
    environment = os.environ
    node = environment.get("SLURM_NODEID", "")
    each: list[str] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):  # for example "4(x2),3"
        tasks, _, times = part.partition("(x")
        times = times.rstrip(")") or "1"
        each += [tasks] * (int(times) if times.isdigit() and len(times) < 6 else 1)
    if node.isdigit() and int(node) < len(each) and each[int(node)]:
        return each[int(node)]
    return environment.get("SLURM_NTASKS_PER_NODE", "")


def job_key() -> str:
    """Return a key that the ranks of one job on a node have in common, and no other job has."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")
    if "LOCAL_WORLD_SIZE" in os.environ or "SLURM_JOB_ID" in os.environ:
        return ",".join(os.environ.get(name, "") for name in names)
    return f"process {os.getpid()}"


class Node:
    """The way of this process to its node's agent. `node_for` makes it; each user closes it once.

    Attributes:
        workers: the number of workers of the job when the agent was last ready; 0: it has not been ready yet.
    """

    def __init__(self, options: Options, key: tuple[Any, ...]) -> None:
        self._options = options
        self._key = key
        self._lock = threading.Lock()
        self._service: Service | None = None
        self._stop = threading.Event()
        self._reducer: Port | LocalAgent | None = None
        self._take_over = options.take_over
        self.users = 0
        self.workers = 0
        abandon_when_forked(self)

    def join(self, timeout: float) -> Reducer:
        """Return the place at the agent, which is ready, and the same for all states until its epoch ends.

        Raises:
            NotReadyError: the job was not complete within `timeout` seconds.
            AgentError: the agent cannot run here, or refused.
        """
        with self._lock:
            if self._reducer is not None and self._reducer.ready:
                return self._reducer
            if self._reducer is not None:
                close_lane(self._reducer)
                self._reducer.close()
                self._reducer = None
            self._reducer = self._connect(timeout)
            self.workers = self._reducer.world_size
            return self._reducer

    def _connect(self, timeout: float) -> Port | LocalAgent:
        options = self._options
        # This is done once: a process that another one has put out must not come back by itself.
        take_over, self._take_over = self._take_over, False
        seat = Seat(options.job or job_key(), options.rank, options.size, bound=True, take_over=take_over)
        wait, deadline = timeout, time.monotonic() + timeout
        if options.agent is not None:
            return LocalAgent(options.agent, timeout, seat)
        controller = controller_address(options.controller)
        name = claim_name(controller, options.node)
        while True:
            if self._service is not None:
                try:
                    return self._service.attach(seat, wait)
                except NotReadyError:
                    raise  # the agent stays joined: the others may come
                except AgentError:
                    self._close_service()
                    raise
            asked = time.monotonic()
            try:
                return LocalAgent(name, wait, seat)
            except ForeignAgentError:
                name = claim_name(controller, options.node, private=True)
                continue
            except NoAgentError:
                if time.monotonic() - asked > RETRY_SECONDS:  # there was an agent, which has gone meanwhile
                    wait = max(0.0, deadline - time.monotonic())
            try:
                self._service = Service(
                    controller,
                    node=options.node,
                    settings=AgentSettings(
                        interface=options.interface,
                        tls=options.tls,
                        operation_timeout=options.operation_timeout or 0.0,
                    ),
                    take_over=take_over,
                    log=lambda line: logger.info("%s", line),
                )
            except ClaimedError:  # another rank was first
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
                continue
            threading.Thread(target=self._run, args=(self._service,), name="inart-agent", daemon=True).start()

    def _run(self, service: Service) -> None:
        try:
            service.run(self._stop)
        except AgentError:
            pass  # `attach` raises it

    def abort(self, reason: str) -> None:
        """End the operations in progress of all users with AbortedError(reason); a user that needs the agent again
        joins anew.
        """
        with self._lock:
            reducer, self._reducer = self._reducer, None
        if reducer is not None:
            close_lane(reducer)
            reducer.abort(reason)

    def abandon(self) -> None:
        """Abandon the way in a forked process: the parent has the place."""
        self._lock, self._service, self._reducer = threading.Lock(), None, None

    def close(self) -> None:
        """Take note that a user is done, and with the last one leave the agent.

        An agent in this process stays until the node's other ranks have left it, too.
        """
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            _nodes.pop(self._key, None)
        with self._lock:
            reducer, self._reducer = self._reducer, None
            if reducer is not None:
                close_lane(reducer)
                reducer.close()
            service = self._service
            if service is None:
                return
            if service.trainers:
                _lingering.append(service)
                threading.Thread(target=self._linger, args=(service,), name="inart-linger", daemon=True).start()
            else:
                self._close_service()

    def _linger(self, service: Service) -> None:
        while service.trainers and service in _lingering:
            time.sleep(RETRY_SECONDS)
        with self._lock:
            self._close_service()

    def _close_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()


_lock = threading.Lock()
_nodes: dict[tuple[Any, ...], Node] = {}
_lingering: list[Service] = []


def _alike(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key of the one existing way that has all that this key names, or this key where there is no such way.

    Two ways of a process to one agent would refuse each other.
    """
    there = [one for one in _nodes if all(own in (None, other) for own, other in zip(key, one, strict=True))]
    return there[0] if len(there) == 1 else key


def _key(options: Options) -> tuple[Any, ...]:
    """Return the key of the way that these options name; the caller has the lock."""
    options = options.resolved()
    return _alike((options.controller, options.agent, options.node, options.interface, os.getpid()))


def completed(options: Options) -> Options:
    """Return the options with the agent that `node_for` would find for them."""
    with _lock:
        controller, agent, node, interface, _ = _key(options)
    return replace(options, controller=controller, agent=agent, node=node, interface=interface)


def node_for(options: Options) -> Node:
    """Return the way to the agent that these options name; it is the same for all that ask."""
    options = options.resolved()
    with _lock:
        key = _key(options)
        node = _nodes.get(key)
        if node is None:
            node = _nodes[key] = Node(options, key)
        node.users += 1
        return node


def _forget_all() -> None:
    """Forget all ways in a forked process: the places at agents are the parent's, and the child may take some of its
    own.
    """
    global _lock
    _lock = threading.Lock()
    _nodes.clear()
    _lingering.clear()


os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _close_all() -> None:
    """Leave all jobs in good order at exit, also when nobody closed the states."""
    services, _lingering[:] = list(_lingering), []
    closers: list[Callable[[], None]] = [service.close for service in services]
    for node in list(_nodes.values()):
        node.users = 1
        closers.append(node.close)
    for close in closers:
        try:
            close()
        except Exception:  # the interpreter is going down; the others are to be closed too
            continue
