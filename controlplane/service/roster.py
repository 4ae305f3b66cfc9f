"""Who is there: agents of one job join, start together, and stop together when one is lost. No gRPC in here.

waiting --all joined--> running (new epoch) --one lost--> waiting (the others were told to abort) --...

A running job can also change over to new configurations without a stop (handover.py). Where it may go on without one
that is lost (`spare`), nobody is told to stop: it is said to `on_lost`, whose turn it is to change the plan (with
`again`), or to `give_up`. Nodes that the job knows and that the running plan does not need may join, and wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace

from controlplane.common.agentconfig import AgentConfig, RepairedTree
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.epochs import EpochStore
from controlplane.service.handover import Handover, HandoverError
from controlplane.service.members import Known, Member, Refused, round_trips_ms, tree_rates
from controlplane.targets.secret_labels import SecretLabels

GRACE_SECONDS = 5.0
PATIENCE_SECONDS = 12.0
"""A connection whose other end is gone without a word looks alive for 10 s (rpc/channels.py, KEEPALIVE)."""
LOOK_SECONDS = 0.1
SILENT_SECONDS = 10.0
"""A parameter server that has reported, and then not for so long, hangs: its connection may look alive for hours."""
SILENT_SPARED_SECONDS = 5.0
"""The same where the job goes on without it, which costs little."""
SILENT_AT_FIRST_SECONDS = 20.0
"""The same for one that has never reported in this epoch: it may still be making ready."""
RETURN_SECONDS = 5.0
"""After a restart of the controller: how long those that are back, and go on working, wait for the others to be back.
Agents try every two seconds."""
SILENT_REPORTS = 5
"""Another agent must have reported so often meanwhile: after a pause of the controller itself all are late."""


class Roster:
    """The agents of one job. Thread-safe.

    Args:
        configs: per node; their epoch does not count.
        version: of the wire format; agents with another one are refused.
        grace: seconds for which the others may go on after an agent that announced that it leaves. It is done, but
            answers to them may have been lost, and they get them from the parameter server.
        patience: seconds for which an agent whose node another process has waits for that one to go.
        log: gets one line per event.
        known: nodes that may join beside those that have a configuration.
        labels: what agents are told in the place of the configurations' label numbers (None: the numbers).
        spare: whether the job goes on when only these nodes are left; asked, and on_lost called (node, reason), with
            the roster's lock held: neither may wait.
    """

    def __init__(
        self,
        configs: Mapping[str, AgentConfig],
        epochs: EpochStore,
        version: int,
        log: Callable[[str], None] = lambda line: None,
        *,
        grace: float = GRACE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        known: Mapping[str, Known] | None = None,
        labels: SecretLabels | None = None,
        spare: Callable[[Collection[str]], bool] = lambda left: False,
        on_lost: Callable[[str, str], None] = lambda node, reason: None,
    ) -> None:
        if not configs:
            raise ValueError("a job without agents")
        self._known = dict(known or {})
        self._labels = labels
        self._spare = spare
        self._on_lost = on_lost
        self._reserve: dict[str, Member] = {}  # has joined, and is not needed
        self._gone: dict[str, str] = {}  # lost from the running epoch, which goes on, and why
        self._take(configs)
        self.epoch = 0
        self._epochs = epochs
        self._version = version
        self._log = log
        self._grace = grace
        self._patience = patience
        self._members: dict[str, Member] = {}
        self._running = False
        self._stopped = False  # what is under way is to be started again
        self._closed = False
        self._refusal = ""
        self._lock = threading.Lock()
        self._handover: Handover | None = None
        self._news = threading.Condition(self._lock)

    def join(self, request: pb.JoinRequest, peer: str = "") -> Member:
        """An agent joins. Raises Refused.

        A second process for the same node takes its place only when it says so. Else it is refused, unless the first
        one goes: after a crash its connection may look alive for a while.
        """
        with self._lock:
            deadline = time.monotonic() + self._patience
            while True:
                if self._closed:
                    raise Refused(self._refusal or "the controller is shutting down")
                node = self._identify(request)
                words = self._occupied(node, request)
                if not words:
                    break
                if time.monotonic() > deadline:
                    raise Refused(words)
                self._news.wait(LOOK_SECONDS)
            member = Member(
                node, peer, request.agent, (request.running_epoch, request.running_digest), process=request.process
            )
            who = f"{request.process} (from {peer})" if request.process else f"another process (from {peer})"
            reason = f"{who} has taken the place of {node}; this one was told to stop"
            earlier = self._members.get(node)
            if earlier is not None:
                earlier.events.put(pb.Event(refused=pb.Refused(reason=reason)))
                self._remove(earlier, f"{node} was replaced by another process")
            waiting = self._reserve.pop(node, None)
            if waiting is not None:
                waiting.events.put(pb.Event(refused=pb.Refused(reason=reason)))
                waiting.events.put(None)
            role = self._known[node].role.replace("_", " ")
            if node not in self.configs or node in self._gone:
                self._log(f"{role} {node} joined; the job goes on without it for now")
                self._put_by(member)
                return member
            self._members[node] = member
            missing = self._missing()
            self._log(f"{role} {node} joined" + (f"; waiting for {_names(missing)}" if missing else ""))
            try:
                self._start_or_wait()
            except BaseException:  # of the epochs' file, say: who is told that is not there
                if not self._running:
                    del self._members[node]
                raise
            return member

    def in_use(self, request: pb.JoinRequest) -> str:
        """Who has the node that this agent wants, in words; empty: nobody, or it takes over. Raises Refused."""
        with self._lock:
            return self._occupied(self._identify(request), request)

    def _occupied(self, node: str, request: pb.JoinRequest) -> str:
        earlier = self._members.get(node)
        if earlier is None or earlier.leaving or request.take_over or earlier.agent == request.agent:
            return ""
        return (
            f"{node} has joined already, as {earlier.process or 'another process'} (from {earlier.peer}): end that "
            "one, or take its place (--take-over, take_over=True), which puts it out of the job"
        )

    def announce_leave(self, agent: str, failure: str = "") -> None:
        """The agent is about to end its stream, because it is done or because of a failure."""
        with self._lock:
            for member in self._members.values():
                if member.agent == agent:
                    member.leaving, member.failure = not failure, failure

    def leave(self, member: Member) -> None:
        """The agent's stream has ended."""
        with self._lock:
            if self._closed:
                return
            if self._reserve.get(member.node) is member:
                del self._reserve[member.node]
                self._log(f"{member.node} is gone again")
                self._fail_handover(f"{member.node} is gone")
                return
            if self._members.get(member.node) is not member:
                return
            if member.failure:
                self._remove(member, f"{member.node} gave up: {member.failure}")
            elif not member.leaving:
                self._remove(member, f"{member.node} is gone (its connection ended)")
            elif not self._running or (
                self.configs[member.node].role == "parameter_server" and self._can_go_on(member.node)
            ):
                self._remove(member, f"{member.node} has left")
            else:
                del self._members[member.node]
                self._log(f"{member.node} has left")
                if self._handover is not None and self._handover.first_operation is not None:
                    self._handover.drained.add(member.node)  # it leaves when it has all results
                    self._news.notify_all()
                else:
                    self._fail_handover(f"{member.node} has left the job")
                epoch = self.epoch
                timer = threading.Timer(self._grace, lambda: self._end_grace(epoch, member.node))
                timer.daemon = True
                timer.start()
            if not self._running:
                self._tell_waiting(self._missing())

    def report(self, request: pb.ReportRequest) -> None:
        """Statistics of an agent; those of an earlier epoch are dropped."""
        with self._lock:
            member = self._members.get(request.node)
            if member is None or request.epoch != self.epoch:
                return
            now = time.monotonic()
            refused = member.refused(request)
            if refused:
                self._log(f"{member.node} refused {refused}: something between them changes or forges packets")
            member.take(request, now)
            for other in self._members.values():
                if other is not member:
                    other.heard[member.node] += 1
            self._look_for_silent(now)

    def round_trips_ms(self) -> dict[int, dict[str, float]]:
        """By tree and worker: the shortest in this epoch, as they reported; what nobody measured is not there."""
        with self._lock:
            return round_trips_ms(self._members.values())

    def tree_rates(self) -> dict[int, float]:
        """Mbit/s that each tree carries for a worker while all workers are busy there (members.py); trees on which one
        was idle, or of which one has not reported lately, are not there."""
        with self._lock:
            workers = [node for node, config in self.configs.items() if config.role == "worker"]
            if not self._running or any(node not in self._members for node in workers):
                return {}
            return tree_rates([self._members[node] for node in workers], time.monotonic())

    def planned_tree_rates(self) -> dict[int, float]:
        """Mbit/s at which each worker is told to send on each tree."""
        with self._lock:
            return {tree.tree: tree.rate_mbps for config in self.configs.values() for tree in config.worker_trees}

    def stalled(self, seconds: float) -> bool:
        """Whether an agent of the running job has had the same oldest open chunk for so long, or what ran before a
        change of plan has not ended in that time."""
        with self._lock:
            now = time.monotonic()
            handover = self._handover
            if handover is not None and handover.switched is not None and now - handover.switched >= seconds:
                return True
            return self._running and any(member.waits(now) >= seconds for member in self._members.values())

    # -- changing the plan; see handover.py -------------------------------------------------------------------------

    def exchange(self, configs: Mapping[str, AgentConfig]) -> bool:
        """Configurations for the next epoch. False, and nothing happens, while one runs: that takes a handover.

        Nodes that are not in the job any more wait, or are told; when all that are have joined, a new epoch begins."""
        with self._lock:
            if self._running:
                return False
            others = set(configs) != set(self.configs)
            self._rearrange(configs)
            if others:
                self._start_or_wait()
            return True

    def restart(self, configs: Mapping[str, AgentConfig], reason: str) -> None:
        """Other configurations, also for other nodes; what runs is stopped with the reason."""
        with self._lock:
            self._fail_handover(reason)
            if self._running:
                self._abort(reason, "")
        self.exchange(configs)

    def gone(self) -> dict[str, str]:
        """Who was lost from what runs, and why; the job waits for `prepare` without them, or `give_up`."""
        with self._lock:
            return dict(self._gone)

    def waiting(self) -> dict[str, float]:
        """Nodes that have joined and that the running plan does not need; for how many seconds."""
        with self._lock:
            now = time.monotonic()
            return {node: now - member.joined for node, member in self._reserve.items()}

    def go_on_after_restart(self) -> None:
        """When the controller has started again, and agents have not come back that were lost meanwhile: go on without
        them where the job can, as if they had been lost now. Else the others would wait for them until their operations
        fail. For somebody who looks every now and then."""
        with self._lock:
            missing = self._missing()
            if self._running or self._closed or not missing or not self._members:
                return
            since = max(member.joined for member in self._members.values())
            if time.monotonic() - since >= RETURN_SECONDS:
                self._carry_on_without([*missing, *self._fresh()])

    def give_up(self, reason: str) -> None:
        """The job does not go on without those who are gone: everybody stops, until they are back."""
        with self._lock:
            if self._gone and self._running and not self._closed:
                self._abort(reason, next(iter(self._gone)))
                self._start_or_wait()

    def prepare(self, configs: Mapping[str, AgentConfig], timeout: float, *, again: bool = False) -> Handover:
        """Make all agents ready for `configs`; workers hold their operations back until switch_over or withdraw. With
        `again`, and where one is gone that is not in `configs`, they stop what is under way, and start it again then.

        Raises:
            HandoverError: one cannot, or does not say so within `timeout` seconds. It is withdrawn then.
        """
        with self._lock:
            there = {**self._reserve, **self._members}
            missing = [node for node in configs if node not in there or node in self._gone]
            if self._closed:
                raise HandoverError(self._refusal or "the controller is shutting down")
            if self._handover is not None or not self._running or missing:
                raise HandoverError(
                    "another change of plan is under way"
                    if self._handover is not None
                    else f"the job does not run: waiting for {_names(missing)}"
                )
            newcomers = [node for node in configs if node not in self.configs and configs[node].role == "worker"]
            if newcomers:
                raise HandoverError(f"{_names(newcomers)} cannot join what runs: it knows none of its operations")
            epoch = self._epochs.next()
            handover = Handover(
                epoch,
                {node: replace(config, epoch=epoch, key=self._epochs.key(epoch)) for node, config in configs.items()},
                again=again or bool(self._gone) or self._stopped,
                fewer=any(node not in configs for node, one in self.configs.items() if one.role == "worker"),
            )
            self._handover = handover
            self._stopped = handover.again
            for node, config in handover.configs.items():
                event = pb.Event()
                told = self._as_told(config)
                event.prepare.agent_config = told.dumps()
                event.prepare.digest = told.digest
                event.prepare.again = handover.again
                there[node].events.put(event)
            self._log(f"change of plan: epoch {epoch} is being prepared")
            self._news.wait_for(lambda: handover.failure or not handover.unprepared(), timeout)
            if not handover.failure and handover.unprepared():
                handover.failure = f"{_names(handover.unprepared())} did not make ready within {timeout:g} s"
            if handover.failure:
                self._withdraw(handover)
                raise HandoverError(handover.failure)
            return handover

    def switch_over(self, handover: Handover) -> int:
        """All change over at one operation, whose number in the old epoch is returned. Raises HandoverError."""
        with self._lock:
            if handover.failure:
                raise HandoverError(handover.failure)
            first = handover.choose_operation()
            self._rearrange(handover.configs, quietly=True)
            self._gone.clear()
            self._stopped = False
            self.epoch = handover.epoch
            order = pb.SwitchOver(epoch=self.epoch, first_operation=first, given=handover.given())
            for node, member in self._members.items():
                member.begin(self.epoch, self.told(node).digest)
                member.events.put(pb.Event(switch_over=order))
            self._log(f"epoch {self.epoch} begins at operation {first}, without a stop")
            return first

    def repaired(self, trees: Mapping[str, Sequence[RepairedTree]]) -> None:
        """Trees of what runs were led another way: tell each of these nodes."""
        with self._lock:
            there = {**self._reserve, **self._members}
            for node, found in trees.items():
                if node in there and found:
                    event = pb.Event()
                    for one in found:
                        if self._labels is not None:
                            one = replace(one, label=self._labels.label(one.label))
                        event.repaired.trees.add(**asdict(one))
                    there[node].events.put(event)

    def retire(self, handover: Handover) -> None:
        """Wait, without limit, until all workers have the results of what ran before; then the old configurations are
        dropped. Raises HandoverError when the job was stopped meanwhile (they are dropped with it)."""
        with self._lock:
            self._news.wait_for(lambda: handover.failure or not handover.undrained())
            self._handover = None
            if handover.failure:
                raise HandoverError(handover.failure)
            for member in self._members.values():
                member.events.put(pb.Event(retire=pb.Retire(epoch=handover.epoch)))
            for member in self._reserve.values():
                if member.running[0]:
                    member.running = (0, "")
                    member.events.put(pb.Event(abort=pb.Abort(reason=self._words_for_waiting(member.node))))
            self._log(f"nothing is left of what ran before epoch {handover.epoch}")

    def report_update(self, report: pb.UpdateReport) -> None:
        """An agent says how far it is with an update."""
        with self._lock:
            for member in (*self._members.values(), *self._reserve.values()):
                if member.agent == report.agent and self._handover is not None:
                    self._handover.report(member.node, report)
                    self._news.notify_all()

    def _withdraw(self, handover: Handover) -> None:
        self._log(f"the change of plan does not take place: {handover.failure}")
        self._handover = None
        for member in (*self._members.values(), *self._reserve.values()):
            member.events.put(pb.Event(withdraw=pb.Withdraw(epoch=handover.epoch, reason=handover.failure)))

    def knows(self, request: pb.JoinRequest) -> bool:
        """Whether the agent's node is one of this job's."""
        if request.node:
            return request.node in self._known
        return any(address in self._by_address for address in request.addresses)

    def close(self, refusal: str = "") -> None:
        """End all streams. What the agents run goes on without a controller; with a refusal they are told to end."""
        with self._lock:
            self._closed = True
            self._refusal = refusal
            self._fail_handover(refusal or "the controller is shutting down")
            for member in (*self._members.values(), *self._reserve.values()):
                if refusal:
                    member.events.put(pb.Event(refused=pb.Refused(reason=refusal)))
                member.events.put(None)

    @property
    def running(self) -> bool:
        """Whether agents have a configuration and work by it."""
        with self._lock:
            return self._running

    def members(self) -> dict[str, Member]:
        """Who is there, by node."""
        with self._lock:
            return dict(self._members)

    def status(self) -> pb.StatusReply:
        """Agents and trees; the caller adds plan and switches."""
        with self._lock:
            now = time.monotonic()
            running = self._running and not self._missing()
            reply = pb.StatusReply(epoch=self.epoch, state="running" if running else "waiting")
            reply.update = str(self._handover) if self._handover is not None else ""
            for node, config in self.configs.items():
                agent = reply.agents.add(node=node, role=config.role, reported_seconds=-1)
                member = self._members.get(node)
                if member is not None:
                    agent.joined, agent.peer, agent.joined_seconds = True, member.peer, now - member.joined
                    agent.statistics.update(member.statistics)
                    if member.reported is not None:
                        agent.reported_seconds = now - member.reported
                for tree in config.root_trees:
                    status = reply.trees.add(tree=tree.tree, root=node)
                    report = member.trees.get(tree.tree) if member else None
                    if report is not None and report.HasField("oldest_chunk"):
                        status.oldest_chunk = report.oldest_chunk
                        status.missing.extend(report.missing)
                        status.waiting_seconds = report.waiting_seconds
            reply.trees.sort(key=lambda tree: tree.tree)
            return reply

    def _end_grace(self, epoch: int, node: str) -> None:
        """`node` left an epoch some time ago: what still runs in it cannot end any more."""
        with self._lock:
            if self._running and self.epoch == epoch and node not in self._members and not self._closed:
                self._abort(f"{node} has left the job", node)
                self._tell_waiting(self._missing())

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _take(self, configs: Mapping[str, AgentConfig]) -> None:
        self.configs = dict(configs)
        self._known |= {node: Known(config.role, config.address) for node, config in configs.items()}
        self._by_address = {known.address: node for node, known in self._known.items()}

    def _rearrange(self, configs: Mapping[str, AgentConfig], *, quietly: bool = False) -> None:
        """Take configurations for other nodes, too. quietly: who is not needed any more goes on for now."""
        self._take(configs)
        for node in [node for node in self._members if node not in configs]:
            member = self._members.pop(node)
            if quietly:
                self._reserve[node] = member
            else:
                member.running = (0, "")
                self._put_by(member)
        self._promote_standbys()

    def _promote_standbys(self) -> None:
        """Agents that wait, and that the configurations name, become members."""
        for node in [node for node in self._reserve if node in self.configs and node not in self._members]:
            self._members[node] = self._reserve.pop(node)

    def _put_by(self, member: Member) -> None:
        member.joined = time.monotonic()
        self._reserve[member.node] = member
        words = self._words_for_waiting(member.node)
        member.events.put(pb.Event(waiting=pb.Waiting(missing=[member.node], reason=words)))

    def _words_for_waiting(self, node: str) -> str:
        return f"the job goes on without {node} for now; it waits to be used again"

    def _spares(self) -> list[str]:
        """Parameter servers that wait, and can begin while the others run."""
        return [node for node in self._reserve if self._known[node].role == "parameter_server"]

    def _can_go_on(self, node: str) -> bool:
        """Whether the job that runs may go on without this node, too."""
        left = [one for one in self._known if (one in self._members or one in self._spares()) and one != node]
        workers = [one for one, config in self.configs.items() if config.role == "worker"]
        done = any(one not in self._members and one not in self._gone and one != node for one in workers)
        return self._running and not self._closed and not done and self._spare(left)

    def _identify(self, request: pb.JoinRequest) -> str:
        node = request.node
        if not node:
            found = [self._by_address[address] for address in request.addresses if address in self._by_address]
            if len(found) != 1:
                addresses = ", ".join(request.addresses) or "none"
                problem = "several nodes" if found else "no node"
                raise Refused(
                    f"{problem} of the job at the agent's addresses ({addresses}); the job's are "
                    f"{', '.join(f'{n} {c.address}' for n, c in self.configs.items())}. Give the name with --node"
                )
            node = found[0]
        if node not in self._known:
            raise Refused(f"{node!r} is not a node of this job; its nodes are {', '.join(self._known)}")
        if self._known[node].role != request.role:
            wanted, got = (role.replace("_", " ") for role in (self._known[node].role, request.role))
            raise Refused(f"{node} is a {wanted} of this job, not a {got}")
        if request.version != self._version:
            raise Refused(
                f"{node} speaks version {request.version} of the packets' encoding, the controller {self._version}: "
                "install the same version on both"
            )
        return node

    def _look_for_silent(self, now: float) -> None:
        """Parameter servers that hang are out: the workers need not wait for them. A worker that hangs is its own
        trainer, whom nobody can replace: that one is waited for, where the job may not go on without it. The others'
        reports are the clock."""
        if not self._running or self._closed:
            return
        for member in list(self._members.values()):
            known = member.reported is not None
            silent = now - (member.reported if member.reported is not None else member.began)
            if silent <= (SILENT_SPARED_SECONDS if known else SILENT_AT_FIRST_SECONDS):
                continue  # nearly always: every report looks at all members
            if max(member.heard.values(), default=0) < SILENT_REPORTS:
                continue
            hangs = self.configs[member.node].role == "parameter_server" and (not known or silent > SILENT_SECONDS)
            if hangs or self._can_go_on(member.node):
                self._remove(member, f"{member.node} is gone (no report for {silent:.0f} s: it hangs)")

    def _start_or_wait(self) -> None:
        missing = self._missing()
        if missing:
            self._tell_waiting(missing)
        elif not self._carry_on_without(self._fresh()):
            self._start()

    def _fresh(self) -> list[str]:
        """Members that run nothing."""
        return [node for node, member in self._members.items() if not member.running[0]]

    def _carry_on_without(self, lost: Sequence[str]) -> bool:
        """The controller has started again: all others go on with the epoch that they run, and these, which are not
        there or were started anew meanwhile, count as lost now. False, and nothing happens: the job cannot do that."""
        left = {node: member for node, member in self._members.items() if node not in lost}
        epoch = self._common_epoch(left)
        workers = any(self._known[node].role == "worker" for node in lost if node in self._members)
        if not lost or not epoch or workers or not self._spare([*left, *self._spares()]):
            return False
        there = [self._members.pop(node) for node in lost if node in self._members]
        self._begin(epoch)
        self._log(f"{len(left)} agents are back and run epoch {epoch}, without {_names(list(lost))}")
        for member in there:
            self._put_by(member)
        for node in lost:
            self._gone[node] = f"{node} was lost while the controller was away"
            self._on_lost(node, self._gone[node])
        return True

    def _missing(self) -> list[str]:
        return [node for node in self.configs if node not in self._members]

    def _tell_waiting(self, missing: list[str]) -> None:
        for member in self._members.values():
            member.events.put(pb.Event(waiting=pb.Waiting(missing=missing)))

    def _start(self) -> None:
        carried_on = self._common_epoch(self._members)
        self._begin(carried_on)
        if carried_on:
            self._log(f"all {len(self.configs)} agents are back and run epoch {self.epoch}")
        else:
            self._log(f"all {len(self.configs)} agents have joined: epoch {self.epoch} begins")

    def _begin(self, carried_on: int) -> None:
        """Those that have joined run from now on: in an epoch of their own, or in the one that they carried over a
        restart of the controller (0: in none)."""
        if carried_on:
            self._epochs.adopt(carried_on)
            self.epoch = carried_on
        else:
            self.epoch = self._epochs.next()
        self._running = True
        key = self._epochs.key(self.epoch)
        for node, member in self._members.items():
            config = self.told(node)
            member.begin(self.epoch, config.digest)
            event = pb.Event()
            event.configuration.agent_config = replace(config, epoch=self.epoch, key=key).dumps()
            event.configuration.digest = member.running[1]
            member.events.put(event)

    def told(self, node: str) -> AgentConfig:
        """A node's configuration as its agent gets it: with labels as they are on the wire."""
        return self._as_told(self.configs[node])

    def label_number(self, label: int) -> int:
        """The number in the configurations of a label that an agent reports."""
        return label if self._labels is None else self._labels.number(label)

    def _as_told(self, config: AgentConfig) -> AgentConfig:
        return config if self._labels is None else self._labels.configuration(config)

    def _common_epoch(self, members: Mapping[str, Member]) -> int:
        """The epoch that these agents already run with their very configurations (the controller restarted), else 0."""
        epochs = {member.running[0] for member in members.values()}
        same = all(member.running[1] == self.told(node).digest for node, member in members.items())
        return epochs.pop() if same and len(epochs) == 1 else 0

    def _remove(self, member: Member, reason: str) -> None:
        del self._members[member.node]
        member.events.put(None)
        if self._can_go_on(member.node):
            self._gone[member.node] = reason
            self._log(f"{reason}: the job goes on without it")
            self._fail_handover(reason)
            self._on_lost(member.node, reason)
        elif self._carries_on_without(member.node):
            self._log(f"{reason}; the others, which ran before the controller started again, go on")
        else:
            self._abort(reason, member.node)

    def _carries_on_without(self, node: str) -> bool:
        """Whether those that are back after a restart of the controller can go on without this one, when all the others
        are back, too (`_carry_on_without`)."""
        others = [one for one in self.configs if one != node]
        carried = not self._running and not self._closed and self._common_epoch(self._members)
        return bool(carried) and self._spare(others)

    def _abort(self, reason: str, node: str) -> None:
        """Stop the epoch, if one runs; what agents carried over a restart of the controller ends with it too."""
        self._log(reason + (": the others stop until it is back" if self._running and self._members else ""))
        self._fail_handover(reason)
        for other in self._members.values():
            if self._running or other.running[0]:
                other.events.put(pb.Event(abort=pb.Abort(reason=reason, nodes=[node] if node else [])))
            other.running = (0, "")
        self._running = self._stopped = False
        self._gone.clear()
        self._promote_standbys()

    def _fail_handover(self, reason: str) -> None:
        if self._handover is not None and not self._handover.failure:
            self._handover.failure = reason
            self._news.notify_all()


def _names(nodes: list[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= 8 else f"{', '.join(nodes[:6])} and {len(nodes) - 6} more"
