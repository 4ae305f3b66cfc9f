"""A node's agent, and its trainers: ranks of one job, over a Unix socket or in the same process.

Trainers need only access to the socket. One job has the agent at a time; all its local ranks use it at once (team.py).
The job belongs to the user who runs its first rank: other users can neither join nor replace it.
A trainer that goes away without a word is a lost worker: the agent joins the job anew, which stops the operations of
the others with a message that names this node.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.common.rpc.tls import Tls
from worker_agent.agent import Agent
from worker_agent.collectives import collective
from worker_agent.engine import DEFAULT_TIMEOUT
from worker_agent.errors import AbortedError, AgentError, NotReadyError
from worker_agent.forked import abandon_when_forked
from worker_agent.operands import BYTES, SMALL_DTYPES, item_bytes, operand
from worker_agent.socket_protocol import (
    VERSION,
    Connection,
    ConnectionLost,
    ProtocolViolation,
    Seat,
    claim,
    close_all,
    peer_of,
)
from worker_agent.team import Port, Team
from worker_agent.work import Work

MOST_REGIONS = 1024
TURN_SECONDS = 3.0
"""Seconds for which a trainer waits for an earlier one, which may be on its way out, before it is told that the agent
is busy.
"""
_NUMPY_TYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, BYTES: np.uint8}
_NUMPY_TYPES |= {name: np.dtype(name) for name in SMALL_DTYPES}


@dataclass
class _Place:
    """A trainer that has the agent.

    Attributes:
        seat: which rank of which job it is.
        user: the user id of the trainer's process.
        who: the trainer's process, in words.
        leave: called with a reason to make it go.
        used: whether it has started an operation, so that others may wait for its next one.
        agent, team: those that it takes part in.
    """

    seat: Seat
    user: int
    who: str
    leave: Callable[[str], None]
    used: bool = False
    agent: Agent | None = None
    team: Team | None = None

    @property
    def awaited(self) -> bool:
        """Whether others may wait for the trainer, because its operations have not ended."""
        return self.used and self.team is not None and not self.team.ended


@dataclass
class _Session:
    """The trainers of one job, all of one user."""

    job: str
    size: int
    user: int
    places: dict[int, _Place] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentSettings:
    """Settings with which a node's agent takes part in a job: arguments of Agent, by their names."""

    interface: str | None = None
    tls: Tls | None = None
    operation_timeout: float = DEFAULT_TIMEOUT
    job: str | None = None


@dataclass(frozen=True)
class Permissions:
    """The permissions of a socket: its mode, and the name or number of its group (None: this process's)."""

    mode: int = 0o660
    group: str | None = None


USUAL = AgentSettings()
OWN_GROUP = Permissions()


class Service:
    """Runs a node's agent for the trainers of one job at a time.

    Trainers of this machine find it by controller and node (an abstract Unix socket, for this user and root), or by
    `path`.

    Args:
        controller, node, log: see Agent.
        settings: how the agent takes part in the job.
        take_over: replace a process that has joined as this node without being its agent for others (`connect`).
        path: path of a socket with permissions of its own; a socket there that nobody listens on is replaced.
        permissions: the permissions of `path`.

    Raises:
        AgentError: this node's agent runs already, or cannot listen on `path`.
    """

    def __init__(
        self,
        controller: str,
        path: str | None = None,
        *,
        node: str | None = None,
        settings: AgentSettings = USUAL,
        take_over: bool = False,
        permissions: Permissions = OWN_GROUP,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path = Path(path) if path is not None else None
        self._log = log
        # Only the first agent takes over, because one that was put out must not come back by itself.
        self._new_agent = partial(Agent, controller, node, **vars(settings), log=log)
        self._claim = claim(controller, node, settings.job)
        self._listeners = [self._claim]
        try:
            if self._path is not None:
                self._listeners.append(_listen(self._path, permissions))
        except AgentError:
            self._claim.close()
            raise
        self._changed = threading.Condition()
        self._renewal = threading.Lock()  # held while another agent is made
        self._session: _Session | None = None
        self._team: Team | None = None
        self._closed = False
        self._bound = False  # whether the agent may join only the job of its trainers
        abandon_when_forked(self)
        try:
            self._agent = self._new_agent(take_over=take_over)
        except AgentError:
            for listener in self._listeners:
                listener.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            raise

    def run(self, stop: threading.Event, *, stays: bool = False) -> None:
        """Serve until `stop` is set. Raise AgentError when the agent cannot go on (the controller refused).

        With `stays`, an agent whose job was removed waits for the next job of this node.
        """
        # Not select(): a process with more than 1,024 descriptors could not use it.
        ready = selectors.DefaultSelector()
        for listener in self._listeners:
            ready.register(listener, selectors.EVENT_READ, listener)
        with ready:
            self._accept(ready, stop, stays)

    def _accept(self, ready: selectors.BaseSelector, stop: threading.Event, stays: bool) -> None:
        while not stop.is_set() and not self._closed:
            try:
                for key, _ in ready.select(0.2):
                    listener: socket.socket = key.data
                    accepted, _ = listener.accept()
                    named = listener is not self._claim
                    threading.Thread(target=self._serve, args=(accepted, named), name="trainer", daemon=True).start()
            except (OSError, ValueError):
                if self._closed:
                    return
                raise
            agent = self._agent
            try:
                agent.wait_change(0)
            except AgentError as error:
                if not stays or agent.config is None:  # it was refused before it had a job
                    raise
                self._wait_for_next_job(agent, str(error))

    def _wait_for_next_job(self, agent: Agent, reason: str) -> None:
        """Replace an agent that was refused because its job is over, and end the job's trainers."""
        with self._renewal:
            if self._closed or self._agent is not agent:
                return
            self._log(f"{reason}: waiting for the next job")
            self._end_team(reason)
            with self._changed:
                places = list(self._session.places.values()) if self._session is not None else []
            for place in places:
                place.leave(reason)
            agent.close(announce=False)
            self._agent, self._bound = self._new_agent(), False

    def attach(self, seat: Seat, timeout: float) -> Port:
        """Give a trainer in this process its place. Raise AgentError where it is refused, NotReadyError where the job
        is not complete within `timeout` seconds.
        """
        who = f"process {os.getpid()} (this one)"
        place = _Place(seat, os.getuid(), who, lambda reason: self._end_team(reason), used=True)
        self._admit(place)
        try:
            team = self._join(place, timeout)
        except BaseException:
            self._release(place, clean=True)
            raise
        return Port(team, seat.rank, lambda clean: self._release(place, clean), self._agent.stats)

    @property
    def trainers(self) -> int:
        """The number of trainers now."""
        with self._changed:
            return len(self._session.places) if self._session is not None else 0

    @property
    def agent(self) -> Agent:
        """The agent; after the loss of a trainer there is another one."""
        return self._agent

    def close(self) -> None:
        """End the trainers' connections and leave the job. A second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            places = list(self._session.places.values()) if self._session is not None else []
        for place in places:
            place.leave("the agent is closed")
        for listener in self._listeners:
            # While `run` waits on a listener in another thread, one that is only closed would go on to accept trainers.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._agent.close()

    def abandon(self) -> None:
        """Abandon the service in a forked process: the parent is the node's agent, and nobody may find the child when
        the parent has ended.
        """
        self._closed = True
        self._changed, self._renewal = threading.Condition(), threading.Lock()
        for listener in self._listeners:
            listener.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- who has the agent --------------------------------------------------------------------------------------------

    def _admit(self, place: _Place) -> None:
        """Wait until there is room for this trainer. Raise AgentError, which names the trainer in the way."""
        seat = place.seat
        deadline = time.monotonic() + TURN_SECONDS
        with self._changed:
            while True:
                session = self._session
                if session is None or not session.places:
                    session = _Session(seat.job, seat.size, place.user, {seat.rank: place})
                    self._session, self._team = session, None
                    return
                own = session.user == place.user
                same = own and session.job == seat.job and session.size == seat.size
                if same and seat.rank not in session.places:
                    session.places[seat.rank] = place
                    return
                if own and not same and seat.take_over:
                    others = list(session.places.values())
                    self._changed.release()
                    try:
                        for other in others:
                            self._log(f"{place.who} takes over from {other.who}")
                            other.leave(f"{place.who} has taken this node's agent over")
                            self._release(other, clean=not other.used)
                    finally:
                        self._changed.acquire()
                    continue
                left = deadline - time.monotonic()
                if left <= 0:
                    busy = session.places.get(seat.rank) if same else next(iter(session.places.values()))
                    assert busy is not None, "it is in the way"
                    remedy = f"wait for the end of user {session.user}'s job; only that user can take the agent over"
                    if own:
                        remedy = "end that one, or take the agent over (take_over=True), which puts the other job out"
                    raise AgentError(f"this node's agent is in use by {busy.who}: {remedy}")
                self._changed.wait(left)

    def _release(self, place: _Place, clean: bool) -> None:
        """Take note that a trainer is gone: cleanly (`clean`), or without a word, so that others may wait for it."""
        with self._changed:
            session = self._session
            if session is None or session.places.get(place.seat.rank) is not place:
                return
        if not clean:
            self._lose(place)
        with self._changed:
            if session.places.get(place.seat.rank) is place:
                del session.places[place.seat.rank]
            last = not session.places
            self._changed.notify_all()
        if last:
            self._unbind()

    def _lose(self, place: _Place) -> None:
        """Join anew where a trainer that others may wait for is gone without a word, which stops their operations.

        Several that go at once (a parameter server is lost, and all see it) make one new agent: two would put each
        other out.
        """
        with self._renewal:
            agent = self._agent
            if self._closed or not place.awaited or place.agent is not agent:
                return
            self._log(f"{place.who} is gone without a word: joining anew")
            self._end_team(f"{agent.config.node if agent.config else 'the node'} is gone: {place.who}")
            agent.close(announce=False)
            with self._changed:
                session = self._session
                others = session is not None and any(one is not place for one in session.places.values())
            # Another job may have this node by now, and the other trainers did not come for that one.
            config = agent.config if others else None
            self._agent = self._new_agent(job=config.job) if config is not None else self._new_agent()
            self._bound = config is not None

    def _unbind(self) -> None:
        """Replace an agent that still waits for the job of trainers who have left: that job may be gone."""
        with self._renewal:
            if self._closed or not self._bound or self._agent.config is not None:
                return
            self._agent.close(announce=False)
            self._agent, self._bound = self._new_agent(), False

    def _join(self, place: _Place, timeout: float) -> Team:
        """Return the team of the present epoch, once the job is complete. Raise AgentError where the agent cannot go
        on, NotReadyError after `timeout` seconds.
        """
        agent, size = self._agent, place.seat.size
        agent.wait_ready(timeout)
        with self._changed:
            if self._team is None or self._team.ended or self._team.size != size:
                self._team = Team(agent, size)
            place.agent, place.team = agent, self._team
            return self._team

    def _present(self, place: _Place) -> Team:
        """Return the team of the present epoch, for a trainer that goes on over epochs. Raise AbortedError while the
        job does not run.
        """
        try:
            return self._join(place, 0)
        except NotReadyError:
            raise AbortedError(self._agent.problem or "the job begins anew") from None

    def _end_team(self, reason: str) -> None:
        with self._changed:
            team, self._team = self._team, None
        if team is not None:
            team.end(reason)

    def _serve(self, accepted: socket.socket, named: bool) -> None:
        """Serve a trainer over a socket. `named` says that it came by the path, whose permissions say who may."""
        pid, uid = peer_of(accepted)
        connection = Connection(accepted)
        who = f"process {pid} of user {uid}"
        if not named and uid not in (0, os.getuid()):
            connection.refuse("AgentError", f"this node's agent belongs to user {os.getuid()}, not to user {uid}")
            return
        place: _Place | None = None
        clean = False
        try:
            trainer = _Trainer(connection)
            place = _Place(trainer.hello(), uid, who, lambda reason: connection.refuse("AbortedError", reason))
            self._admit(place)
            team = self._join(place, trainer.timeout)
            renew = (lambda: team) if place.seat.bound else (lambda: self._present(place))
            clean = trainer.serve(renew, place)
        except ConnectionLost:
            pass
        except (ProtocolViolation, AgentError) as error:
            connection.refuse(type(error).__name__, str(error))
            self._log(f"{who}: {error}")
        except (TypeError, ValueError, OverflowError) as error:  # values of other kinds than the protocol's
            connection.refuse("ProtocolViolation", f"a message does not make sense: {error}")
            self._log(f"{who}: a message does not make sense: {error}")
        finally:
            if place is not None:
                self._release(place, clean)
            connection.close()


class _Trainer:
    """The connection of one trainer.

    Attributes:
        timeout: seconds for which it waits for the job to be complete.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.timeout = 0.0
        self._regions: dict[int, mmap.mmap] = {}

    def hello(self) -> Seat:
        """Receive the trainer's first message, and return its seat. Raise ProtocolViolation for other messages."""
        hello, descriptors = self.connection.receive()
        close_all(descriptors)
        if hello["type"] != "hello" or hello.get("version") != VERSION:
            raise ProtocolViolation(f"this agent speaks version {VERSION} of the socket protocol: install the same one")
        timeout = float(hello.get("timeout", 0))
        if not timeout >= 0:  # also refuses NaN
            raise ProtocolViolation(f"a timeout is a number of seconds, got {timeout}")
        self.timeout = min(timeout, 3600.0)
        return Seat.from_json(hello)

    def serve(self, present: Callable[[], Team], place: _Place) -> bool:
        """Serve until the connection ends, and return whether the trainer said good-bye; `present` returns the team
        that operations go to.
        """
        team = present()
        welcome: dict[str, Any] = {"workers": team.workers, "node": team.node, "index": team.index, "epoch": team.epoch}
        welcome |= {"values": team.values_per_packet, "ways": team.ways.to_json()}
        self.connection.send({"type": "welcome", **welcome})
        if place.seat.bound:
            # A trainer without operations in progress must hear of the end, too, to come back with the others.
            team.on_end(lambda reason: self._answer({"type": "ended", "message": reason}))
        while True:
            message, descriptors = self.connection.receive()
            if message["type"] == "bye":
                close_all(descriptors)
                return True
            if message["type"] == "region":
                self._map(message, descriptors)
                continue
            close_all(descriptors)
            if message["type"] == "late":
                # A thread asks the controller, so that the next operation need not wait for the answer.
                threading.Thread(target=self._say_who_is_late, args=(present,), name="late", daemon=True).start()
                continue
            if message["type"] != "allreduce":
                raise ProtocolViolation(f"unknown message {message['type']!r}")
            self._start(present, place, message)

    def _say_who_is_late(self, present: Callable[[], Team]) -> None:
        names: list[str] = []
        with contextlib.suppress(AgentError):
            names = present().late()
        self._answer({"type": "late", "names": names[:100]})

    def _map(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            number, size = message.get("region"), message.get("bytes")
            if len(descriptors) != 1 or not isinstance(number, int) or not isinstance(size, int) or size <= 0:
                raise ProtocolViolation("a region needs a number, its bytes and a descriptor")
            if number in self._regions or len(self._regions) >= MOST_REGIONS:
                raise ProtocolViolation(f"region {number} exists already, or there are {MOST_REGIONS}")
            # Without the seal a trainer could shrink the file under the mapping, and end this process with SIGBUS.
            if not fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ProtocolViolation("a region must be sealed against shrinking")
            if os.fstat(descriptors[0]).st_size < size:
                raise ProtocolViolation(f"region {number} is smaller than its {size} bytes")
            self._regions[number] = mmap.mmap(descriptors[0], size)
        except OSError as error:
            raise ProtocolViolation(f"a region cannot be mapped: {error}") from None
        finally:
            close_all(descriptors)

    def _start(self, present: Callable[[], Team], place: _Place, message: dict[str, Any]) -> None:
        number, region, elements = (message.get(key) for key in ("id", "region", "elements"))
        dtype = message.get("dtype")
        try:
            op = collective(str(message.get("op")))
        except ValueError as error:
            raise ProtocolViolation(str(error)) from None
        if dtype not in _NUMPY_TYPES or op.raw is not (dtype == BYTES) or not isinstance(number, int):
            raise ProtocolViolation(f"an operation needs an id, a dtype that suits its op, got {message}")
        if not isinstance(elements, int) or elements < 0 or region not in self._regions:
            raise ProtocolViolation(f"an operation needs a region and a number of elements, got {message}")
        memory = self._regions[region]
        if elements * item_bytes(dtype) > len(memory):
            raise ProtocolViolation(f"{elements} elements of {dtype} are more than region {region} holds")
        place.used = True
        array = np.frombuffer(memory, _NUMPY_TYPES[dtype], elements)
        try:
            work = present().submit(place.seat.rank, operand(array, op, dtype), op)
        except (AgentError, ValueError) as error:
            self._answer({"type": "failed", "id": number, "error": type(error).__name__, "message": str(error)})
            return

        def finish(done: Work) -> None:
            error = done.exception()
            if error is None:
                self._answer({"type": "done", "id": number, "seconds": done.seconds})
            else:
                self._answer({"type": "failed", "id": number, "error": type(error).__name__, "message": str(error)})

        work.add_done_callback(finish)

    def _answer(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionLost):
            self.connection.send(message)


def _listen(path: Path, permissions: Permissions) -> socket.socket:
    """Return a listening socket with these permissions. Raise AgentError when another agent listens there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(path))
                raise AgentError(f"another agent listens on {path}")
            except OSError:
                path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        before = os.umask(0o777)  # nobody gets in before the permissions are right
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if permissions.group is not None:
            group = permissions.group
            shutil.chown(path, group=int(group) if group.isdigit() else group)
        os.chmod(path, permissions.mode)
        listener.listen()
    except (OSError, LookupError) as error:
        listener.close()
        raise AgentError(f"cannot listen on {path}: {error}") from None
    return listener
