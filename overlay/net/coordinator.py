"""Who is there, and what is to be done: drives a policy with what agents say, and agents with what it answers."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.plan.model import PlanError
from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    ContinueAlone,
    DefaultSplit,
    Drop,
    Event,
    Failed,
    Finished,
    Lost,
    Measured,
    Mend,
    Order,
    Pace,
    Policy,
    Progress,
    Ready,
    Reject,
    Release,
    Start,
    TakeoverPolicy,
    Withdrawn,
)
from controlplane.targets.base import TargetError
from overlay.core.errors import OverlayError
from overlay.core.pending_submissions import PendingSubmissions
from overlay.core.quorum import Quorum
from overlay.net import liveness
from overlay.net.liveness import ALIVE_SECONDS, Silence
from overlay.net.loop import new_event_loop
from overlay.net.multicast import Seal
from overlay.net.takeover import NUMBERS_PER_COORDINATOR, AgentState, RecoveredTasks, Standby, alive, recover_tasks
from overlay.net.tls import Security
from overlay.net.transport import end_all

if TYPE_CHECKING:
    from overlay.net.replication import Replication

REMIND_SECONDS = 10.0
"""After which who waits for others is told for whom, so that its log says so."""

ANYWHERE = ("", "0.0.0.0", "::")
"""Where agents listen that listen at all addresses: others reach such a one where it comes from."""

GATHER_SECONDS = 5.0
"""Who takes over from another coordinator, or may not be the only one, waits at most so long for all agents. Where too
few come it lets them go: they may be needed elsewhere. How long differs each time (from LEAST_GATHER of it on), or two
coordinators could go on taking half of the agents each."""

LEAST_GATHER = 0.6


STANDBY = b'{"type": "standby"}\n'
GATHERING = b'{"type": "gathering"}\n'
"""What agents are told: another coordinator acts, or may; they are taken in, and it is to be seen which one does."""


class _Member:
    def __init__(self, node: str, address: tuple[str, int], writer: asyncio.StreamWriter, state: AgentState) -> None:
        self.node, self.address, self.writer, self.state = node, address, writer, state
        self.joined = time.monotonic()
        self.silence = Silence()
        self.latest: Task | None = None  # that it was told

    def tell(self, message: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(message)


class Coordinator:
    """A server in a thread of its own; a context manager.

    backs_up: another coordinator, in whose place this one comes when it cannot be reached any more; until then whoever
    wants to join is sent away. Of several coordinators that one acts that more than half of all agents are with
    (overlay/core/quorum.py). Whoever takes over learns from the agents what they are in the middle of: where the
    policy can adopt that, nobody notices; where not, or where some tell of another epoch, tasks are given up.

    probe_values: agents report the throughput of chunks of at least so many values; None: of none. finished(task,
    seconds): called when all participants have what a task had for them; seconds: the longest of them. replication:
    switches that copy multicasts (L3), closed with this; None: there are none, and no task may want them.
    """

    def __init__(
        self,
        policy: Policy,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        backs_up: tuple[str, int] | None = None,
        probe_values: int | None = None,
        security: Security | None = None,
        replication: Replication | None = None,
        log: Callable[[str], None] = lambda line: None,
        finished: Callable[[Task, float], None] = lambda task, seconds: None,
    ) -> None:
        self.policy, self.probe_values, self._security = policy, probe_values, security
        self._replication = replication
        self._key = Seal.draw() if security is not None else b""  # of what switches copy; told over TLS only
        self._log, self._on_finished = log, finished
        self.epoch = time.time_ns()  # another one's even where it comes back at once
        self._quorum = Quorum(len(policy.nodes), contested=backs_up is not None)
        self._standby = Standby(backs_up, self._security, log, self._other_is_back) if backs_up else None
        self._gathering: asyncio.TimerHandle | None = None
        self._unheard: list[tuple[float, str, dict[str, Any]]] = []  # what agents say meanwhile, and when
        self._defaults: dict[int, dict[str, Any]] = {}
        self.active = False
        """Whether it is this one that begins tasks."""
        self._members: dict[str, _Member] = {}
        self._tasks: dict[int, tuple[Task, set[str], float]] = {}
        self._newest = -1  # the highest number of a task that has begun
        self._pending_submissions = PendingSubmissions(policy.nodes)
        self._reminded = ""  # what was said last to those who wait
        self._loop = new_event_loop()
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.address = (host, port)
        self._thread = threading.Thread(target=self._run, name="overlay coordinator", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def tell(self, event: Event) -> None:
        """Something that the policy is to hear from outside (a network that tells its bandwidths). From any thread."""
        self._loop.call_soon_threadsafe(self._handle, event)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            self._loop.close()
            if self._replication is not None:
                self._replication.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        host, port = self.address
        context = self._security.serve if self._security else None
        server = await asyncio.start_server(self._serve, host, port, ssl=context, limit=1 << 20)
        self.address = (host, server.sockets[0].getsockname()[1])
        self._started.set()
        watching = asyncio.ensure_future(self._watch())
        if self._standby is not None:
            self._standby.start(self.address)
        await self._stop.wait()
        watching.cancel()
        server.close()
        for member in list(self._members.values()):
            member.writer.close()
        await end_all()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            for member in list(self._members.values()):
                if self._members.get(member.node) is not member:
                    continue  # let go with one that is gone
                member.silence.tick()
                if member.silence.seconds > liveness.FROZEN_SECONDS:
                    self._gone(member, f"{member.node}'s host is there, and nothing was heard of {member.node} for "
                               f"{liveness.FROZEN_SECONDS:.0f} s")  # fmt: skip
            self._remind()

    def _remind(self) -> None:
        """Whoever has waited for a while for others to bring values hears for whom, once for each of them."""
        late = self._pending_submissions.waiting(time.monotonic() - REMIND_SECONDS)
        reason = self._pending_submissions.missing(self._members) if late else ""
        if reason and reason != self._reminded:
            self._log(f"{', '.join(late)} wait: {reason}")
            self._tell(late, type="waits", reason=reason)
        self._reminded = reason

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member: _Member | None = None
        ended = "has left"
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError(f"a message is an object with a type, got {line[:40]!r}")
                if member is None and message.get("type") == "watch":
                    writer.write(alive(message, active=self.active))
                elif member is None:
                    member = self._join(message, writer)
                    if member is None:
                        await writer.drain()
                        break
                elif self._members.get(member.node) is not member:
                    break  # it has come again, or was given up: what it said before then counts no more
                else:
                    member.silence.heard()
                    self._said(member.node, message)
        except asyncio.CancelledError:
            pass  # the coordinator ends
        except OSError as error:
            ended = f"cannot be reached any more: {error}"
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._log(f"{member.node if member else 'someone'} said what cannot be read: {error!r}")
        finally:
            writer.close()
            if member is not None and self._members.get(member.node) is member:
                self._gone(member, f"{member.node} {ended}")

    # --- members ---

    def _join(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> _Member | None:
        if not (self.active or self._standby is None or self._standby.over):
            writer.write(STANDBY)
            return None
        node = str(message["node"])
        host = str(message["host"])
        address = str(writer.get_extra_info("peername")[0]) if host in ANYWHERE else host, int(message["port"])
        before = self._members.get(node)
        reason = None
        if message.get("type") != "join":
            reason = "the first word must be join"
        elif node not in self.policy.nodes:
            reason = f"{node} has no part in this job; it has {', '.join(self.policy.nodes)}"
        elif before is not None and before.address != address:
            reason = f"{node} is there already"
        elif self._security is not None:
            try:
                self._security.check(writer.transport, "node", node)
            except OverlayError as error:
                reason = str(error)
        if reason is not None:
            writer.write(json.dumps({"type": "refused", "reason": reason}).encode() + b"\n")
            return None
        state = AgentState.of(message)
        if self._quorum.observe(message) and self.active:
            self._step_down(f"{node} has been with a coordinator that began later")
        before = self._members.get(node)
        if before is not None:  # the same agent: it gave its connection up before this end has heard of that
            self._gone(before, f"{node} comes again")
        liveness.watch(writer.transport, liveness.UNREACHED_SECONDS)
        member = _Member(node, address, writer, state)
        self._members[node] = member
        self._log(f"{node} joined ({len(self._members)} of {len(self.policy.nodes)})")
        if not self.active:
            self._gather(member)
            return member
        self._introduce()
        for default in self._defaults.values():
            self._tell((node,), **default)
        for number, (task, _) in state.running.items():
            if state.epoch == self.epoch and number not in self._tasks:  # given up while it was away
                self._tell((node,), type="abort", task=number, reason=f"{node} was lost", again=task.keep)
        self._handle(Back(node))
        return member

    # --- who coordinates ---

    def _gather(self, member: _Member) -> None:
        """Someone has joined a coordinator that does not act yet."""
        inherits = member.state.epoch != 0 and isinstance(self.policy, TakeoverPolicy)
        if self._gathering is None and not self._quorum.contested and not inherits:
            self._take_over()
            return
        member.tell(GATHERING)
        if self._gathering is None:
            seconds = GATHER_SECONDS * random.uniform(LEAST_GATHER, 1.0)
            self._gathering = self._loop.call_later(seconds, self._take_over)
        if len(self._members) == len(self.policy.nodes):
            self._take_over()

    def _too_few(self) -> str:
        here, all_ = len(self._members), len(self.policy.nodes)
        return f"{here} of {all_} agents are here, and another coordinator may have the others"

    def _let_go(self) -> None:
        """Whoever is here is to look for a coordinator elsewhere."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        members, self._members = self._members, {}
        self._unheard.clear()
        for node, member in members.items():
            self._pending_submissions.clear(node)
            member.tell(STANDBY)
            member.writer.close()

    def _step_down(self, reason: str) -> None:
        """It acts no more until more than half of the agents come to it again. What is under way is with them."""
        self._log(f"steps down: {reason}")
        self.active = False
        if self._replication is not None:
            for number in self._tasks:
                self._replication.remove(number)
        self._tasks.clear()
        self._let_go()
        for node in self.policy.nodes:
            try:
                self.policy.handle(Lost(node), time.monotonic())  # what it answers is for nobody
            except Exception as error:
                self._log(f"{type(error).__name__}: {error}")

    def _other_is_back(self) -> bool:
        """The coordinator that this one backs up acts (again); whether this one makes way for it. Where this one acts,
        the other one has fewer agents, and will find so."""
        if not self.active:
            self._let_go()
        return not self.active

    def _take_over(self) -> None:
        """All who are there have said what they are in the middle of."""
        if not self._quorum.reached_by(self._members):
            self._log(self._too_few())
            self._let_go()
            return
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._quorum.start_term()
        self.active = True
        if self._standby is not None:
            self._log(f"coordinates in the place of {self._standby.other} (term {self._quorum.term})")
        states = {node: member.state for node, member in self._members.items()}
        recovered = recover_tasks(states) if isinstance(self.policy, TakeoverPolicy) else None
        if recovered is None:
            if self._newest >= 0 or any(state.epoch for state in states.values()):
                self.epoch = time.time_ns()  # not what any of them has worked in
        elif isinstance(self.policy, TakeoverPolicy):
            number = max(recovered.number, (self._newest // NUMBERS_PER_COORDINATOR + 1) * NUMBERS_PER_COORDINATOR)
            self.epoch = recovered.epoch
            self.policy.adopt(recovered.tasks, number)
            self._newest = number
        self._begin(states, recovered)

    def _begin(self, states: dict[str, AgentState], recovered: RecoveredTasks | None) -> None:
        """Tells all who are there, and goes on with what they are in."""
        self._introduce()
        for node in list(self._members):
            self._handle(Back(node))
        if recovered is not None:
            self._log(f"takes over {len(recovered.tasks)} tasks from another coordinator")
            for number, (task, waiting) in recovered.tasks.items():
                self._tasks[number] = task, set(waiting), 0.0
                aware = {node for node, state in states.items() if number <= state.newest or not state.epoch}
                self._mend(task, [node for node in states if node in task.nodes and node not in aware])
            for number, task in recovered.given_up.items():
                self._tell(task.nodes, type="abort", task=number, reason="given up before", again=task.keep)
            for number, task in recovered.done.items():
                self._tell(task.nodes, type="done", task=number)
            nodes = {node for task, _ in recovered.tasks.values() for node in task.nodes}
            for node in [node for node, state in states.items() if node in nodes and not state.epoch]:
                self._handle(Lost(node))  # another process: what the first one had of these tasks is gone
                self._handle(Back(node))
        for node in self.policy.nodes if recovered is not None else ():
            if node not in self._members:
                self._handle(Lost(node))
        unheard, self._unheard = self._unheard, []
        for at, node, message in unheard:
            other = self._members.get(message["node"]) if message["type"] == "lost" else None
            if other is not None and other.joined > at:
                continue  # it died and is back: what was lost with it says nothing of the link
            member = self._members.get(node)
            if member is not None and member.joined <= at:  # else it died, and what it had brought is gone
                self._said(node, message)

    def _introduce(self) -> None:
        members = {name: member.address for name, member in self._members.items()}
        self._tell(
            self._members,
            type="members",
            term=self._quorum.term,
            epoch=self.epoch,
            everyone=self.policy.nodes,
            members=members,
            probe_values=self.probe_values,
            alone=getattr(self.policy, "alone", False),
            multicast=self._carrier(),
        )

    def _carrier(self) -> dict[str, int | str] | None:
        if self._replication is None:
            return None
        carrier = self._replication.carrier
        return {"job": carrier.job, "program_values": carrier.program_values, "key": self._key.hex()}

    def _gone(self, member: _Member, reason: str) -> None:
        del self._members[member.node]
        member.writer.close()
        self._log(reason)
        self._pending_submissions.clear(member.node)
        if self.active and not self._quorum.reached_by(self._members):
            self._step_down(self._too_few())
        elif self.active:
            self._introduce()
            self._handle(Lost(member.node))

    def _tell(self, nodes: Iterable[str], **message: object) -> None:
        data = json.dumps(message).encode() + b"\n"
        for node in nodes:
            if node in self._members:
                self._members[node].tell(data)

    # --- what agents say ---

    def _said(self, node: str, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "alive":
            self._members[node].tell(alive(message))
        elif not self.active:
            self._unheard.append((time.monotonic(), node, message))
        elif kind == "ready":
            turn = int(message.get("turn", 0))
            self._pending_submissions.add(node, turn, time.monotonic())
            self._handle(Ready(node, int(message["values"]), turn))
        elif kind == "withdraw":
            self._withdraw(node, int(message["turn"]), message["task"], str(message["reason"]))
        elif kind == "finished":
            self._finished(node, int(message["task"]), float(message["seconds"]))
        elif kind == "measured":
            self._handle(Measured(str(message["sender"]), node, float(message["mbps"])))
        elif kind == "progress":
            self._handle(Progress(node, int(message["task"]), str(message["receiver"]), float(message["left"])))
        elif kind == "lost":
            self._log(f"{node}: {message['reason']}")
            other = self._members.get(message["node"])
            if other is not None and list(other.address) == message["address"]:  # else it is back, as another process
                self._handle(Lost(node, other.node))
        elif kind == "failed":
            self._fail(int(message["task"]), f"{node}: {message['reason']}")

    def _fail(self, number: int, reason: str) -> None:
        self._log(f"task {number}: {reason}")
        self._handle(Failed(number, reason))
        if number in self._tasks:  # the policy does not mind
            self._carry_out([Abort(number, reason)])

    def _withdraw(self, node: str, turn: int, number: int | None, reason: str) -> None:
        """Its trainer waits no longer, for a task (None: for one to begin). It hears who is missing."""
        if number is not None:
            if number in self._tasks:
                waiting = sorted(self._tasks[number][1])
                self._fail(number, f"{node}: {reason}; without all of it: {', '.join(waiting)}")
            return
        missing = self._pending_submissions.missing(self._members)
        self._pending_submissions.remove(node, turn)
        self._handle(Withdrawn(node, turn))
        self._tell((node,), type="unmet", turn=turn, reason=f"{reason}: {missing}")

    def _finished(self, node: str, number: int, seconds: float) -> None:
        if number not in self._tasks:
            return
        task, waiting, longest = self._tasks[number]
        self._tasks[number] = task, waiting, max(longest, seconds)
        self._without(number, (node,))
        self._handle(Finished(node, number))

    def _without(self, number: int, nodes: Iterable[str]) -> None:
        """Nobody waits for these any more: what they wanted of the task they have, or do not get."""
        task, waiting, longest = self._tasks[number]
        waiting.difference_update(nodes)
        if not waiting:
            del self._tasks[number]
            if self._replication is not None:
                self._replication.remove(number)
            self._tell(task.nodes, type="done", task=number)
            self._on_finished(task, longest)

    def _handle(self, event: Event) -> None:
        try:
            orders = self.policy.handle(event, time.monotonic())
        except Exception as error:  # of whatever kind: it may end what it is about, and not the job
            self._log(f"no task: {type(error).__name__}: {error}")
            orders = self._instead(event, f"no task can be made: {type(error).__name__}: {error}")
        self._carry_out(orders)

    def _instead(self, event: Event, reason: str) -> list[Order]:
        """Where the policy does not know what to do: trainers whose values wait get them back, and the policy is told
        as if their agents had come again, so that it forgets what they had brought."""
        orders: list[Order] = []
        if isinstance(event, Ready):
            waiting = self._pending_submissions.waiting()
            orders.append(Reject(tuple(waiting), reason))
            for anew in [each for node in waiting for each in (Lost(node), Back(node))]:
                try:
                    orders += self.policy.handle(anew, time.monotonic())
                except Exception as error:
                    self._log(f"{type(error).__name__}: {error}")
        elif isinstance(event, Lost):
            orders += [Abort(number, reason) for number, (task, *_) in self._tasks.items() if event.node in task.nodes]
        return orders

    def _replicated(self, task: Task) -> Task:
        """With what switches copy on the switches. Raises OverlayError."""
        if not any(tree.routes for tree in task.trees):
            return task
        if self._replication is None:
            raise OverlayError("switches are to copy multicasts (L3), and the coordinator was given none (--switches)")
        try:
            return self._replication.install(task)
        except (TargetError, DoesNotFit, PlanError) as error:
            raise OverlayError(str(error)) from None

    def _announce(self, task: Task, nodes: Iterable[str]) -> None:
        """Where it is as the last one, but for its number, no more than that is said: ninety trees are 100 kB to write
        and to read for everyone, while all wait for the last."""
        fresh: list[str] = []
        compared: list[tuple[Task | None, bool]] = [(None, False)]
        for node in nodes:
            member = self._members.get(node)
            if member is None:
                continue
            before, member.latest = member.latest, task
            alike = next((same for other, same in compared if other is before), None)
            if alike is None:
                assert before is not None
                alike = replace(before, number=task.number, round=task.round) == task
                compared.append((before, alike))
            if alike and before is not None:
                self._tell((node,), **{"as": before.number}, type="alike", task=task.number, round=task.round)
            else:
                fresh.append(node)
        if fresh:
            self._tell(fresh, type="task", task=task.to_json())

    def _mend(self, task: Task, fresh: Collection[str]) -> None:
        """fresh: who has not been told of the task before."""
        self._announce(task, fresh)
        self._tell([node for node in task.nodes if node not in fresh], type="mend", task=task.to_json())

    def _carry_out(self, orders: Iterable[Order]) -> None:
        self._obey(orders)
        if self._replication is not None:
            try:
                self._replication.settle()  # branches of receivers that were lost: the others' packets need their room
            except TargetError as error:
                self._log(f"switches still copy to receivers that get no more: {error}")

    def _obey(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                try:
                    if order.task.number <= self._newest:
                        raise OverlayError(f"the policy begins task {order.task.number} after task {self._newest}")
                    task = self._replicated(order.task)
                except OverlayError as error:
                    self._log(f"no task: {error}")
                    self._obey([Reject(order.task.submitters, str(error))])
                    self._handle(Failed(order.task.number, str(error)))
                    continue
                self._newest = task.number
                for node in task.submitters:
                    self._pending_submissions.remove_first(node)
                self._tasks[task.number] = task, set(task.awaited), 0.0
                self._announce(task, task.nodes)
            elif isinstance(order, Mend):
                if order.task.number not in self._tasks:
                    continue
                before, waiting, longest = self._tasks[order.task.number]
                self._tasks[order.task.number] = order.task, waiting, longest
                self._mend(order.task, order.task.nodes - before.nodes)
                self._tell(before.nodes - order.task.nodes, type="done", task=order.task.number)
            elif isinstance(order, Release):
                self._tell((order.node,), type="go", task=order.task)
            elif isinstance(order, DefaultSplit):
                self._defaults[order.values] = {
                    "type": "default", "values": order.values, "chunk_values": order.chunk_values,
                    "blocks": order.blocks,
                }  # fmt: skip
                self._tell(self._members, **self._defaults[order.values])
            elif isinstance(order, Reject):
                for node in order.nodes:
                    self._pending_submissions.remove_first(node)
                self._log(f"{', '.join(order.nodes)}: {order.reason}")
                self._tell(order.nodes, type="unmet", turn=None, reason=order.reason)
            elif isinstance(order, ContinueAlone):
                self._pending_submissions.remove_first(order.node)
                self._tell((order.node,), type="alone", reason=order.reason)
            elif order.task not in self._tasks:
                continue
            elif isinstance(order, Drop):
                task, waiting, longest = self._tasks[order.task]
                self._tasks[order.task] = task.without(order.nodes), waiting, longest
                self._tell((task.trees[0].root,), type="drop", task=order.task, lost=order.nodes)
                self._tell(order.nodes, type="done", task=order.task)
                if self._replication is not None:
                    self._replication.prune(self._tasks[order.task][0])
                self._without(order.task, order.nodes)
            elif isinstance(order, Pace):
                self._tell((self._tasks[order.task][0].trees[0].root,), type="pace", task=order.task, mbps=order.mbps)
            else:
                task, _, _ = self._tasks.pop(order.task)
                if self._replication is not None:
                    self._replication.remove(order.task)
                self._log(f"task {order.task} is given up: {order.reason}")
                self._tell(task.nodes, type="abort", task=order.task, reason=order.reason, again=order.again)
