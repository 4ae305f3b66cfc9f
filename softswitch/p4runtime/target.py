"""One device as P4Runtime clients see it: its clients, its pipeline config, its entities, its packets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.rpc import code_pb2

from softswitch import errors
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import Device
from softswitch.p4runtime import pipeline as pipelines
from softswitch.p4runtime import reconcile, roles
from softswitch.p4runtime.arbitration import Arbiter, Session, to_int
from softswitch.p4runtime.digests import DigestAccess, DigestStats
from softswitch.p4runtime.externs import ExternAccess
from softswitch.p4runtime.meters import MeterAccess
from softswitch.p4runtime.pipeline import Loader, Pipeline
from softswitch.p4runtime.profiles import ProfileAccess
from softswitch.p4runtime.replication import ReplicationAccess
from softswitch.p4runtime.status import P4RuntimeError, denied, from_data_plane, invalid, not_found, unimplemented
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.tables import TableAccess
from softswitch.p4runtime.timer import Timer
from softswitch.p4runtime.undo import Journal
from softswitch.p4runtime.unknown import refuse_fields, refuse_unknown
from softswitch.p4runtime.value_sets import ValueSetAccess
from softswitch.p4runtime.wire import WireWriter

# Entities of P4Runtime that softswitch does not support.
_UNSUPPORTED = {
    "extern_entry": "extern entries",
}

Outcomes = list[P4RuntimeError | None]


@dataclass
class PacketStats:
    """The numbers of packets between pipeline and clients, and of those that reached nobody."""

    packet_in: int = 0
    packet_in_no_primary: int = 0
    packet_in_malformed: int = 0
    packet_in_slow_client: int = 0
    packet_out: int = 0
    packet_out_refused: int = 0


class _Running:
    """The parts of a target that exist only for a running or saved pipeline, and writes to its entities.

    ``device`` is a staged device until the pipeline runs.
    """

    def __init__(self, device: Device, pipeline: Pipeline, digests: DigestAccess) -> None:
        self.device = device
        self.pipeline = pipeline
        self.digests = digests
        profiles = ProfileAccess(device, pipeline.schema)
        tables = TableAccess(device, pipeline.schema, profiles)
        meters = MeterAccess(device, pipeline.schema)
        value_sets = ValueSetAccess(device, pipeline.schema)
        self.tables = tables
        self.wire = WireWriter(device, pipeline.schema)
        externs = ExternAccess(device, pipeline.schema)
        replication = ReplicationAccess(device)
        self.writers: dict[str, Callable[[int, Any, Journal], None]] = {
            "table_entry": tables.write,
            "direct_counter_entry": tables.write_direct_counter,
            "counter_entry": externs.write_counter,
            "register_entry": externs.write_register,
            "meter_entry": meters.write,
            "direct_meter_entry": meters.write_direct,
            "action_profile_member": profiles.write_member,
            "action_profile_group": profiles.write_group,
            "value_set_entry": value_sets.write,
            "packet_replication_engine_entry": replication.write,
            "digest_entry": digests.write,
        }
        self.readers: dict[str, Callable[[Any], Iterator[p4rt.Entity]]] = {
            "table_entry": tables.reads.read,
            "direct_counter_entry": tables.reads.read_direct_counters,
            "counter_entry": externs.read_counters,
            "register_entry": externs.read_registers,
            "meter_entry": meters.read,
            "direct_meter_entry": meters.read_direct,
            "action_profile_member": profiles.read_members,
            "action_profile_group": profiles.read_groups,
            "value_set_entry": value_sets.read,
            "packet_replication_engine_entry": replication.read,
            "digest_entry": digests.read,
        }

    def discard(self) -> None:
        """Free a pipeline that never ran, with its staged device."""
        self.digests.close()
        self.device.discard()

    def write_each(self, updates: Sequence[p4rt.Update], scope: roles.Scope, data: bytes) -> Outcomes:
        """Do the updates one after another, whether others fail or not."""
        journal = Journal(active=False)
        outcomes: Outcomes = []
        at = 0
        while len(outcomes) < len(updates):
            if at < len(data):
                done, at = self.wire.write(data, at, only_inserts=self.tables.has_opaque)
                outcomes += [None] * done
                if len(outcomes) == len(updates):
                    break
            outcomes.append(self.apply(updates[len(outcomes)], journal, scope))
        return outcomes

    def apply(self, update: p4rt.Update, journal: Journal, scope: roles.Scope) -> P4RuntimeError | None:
        """Do one update, and return why it failed, or ``None``."""
        try:
            refuse_unknown(update)
            which = update.entity.WhichOneof("entity")
            writer = _find(self.writers, which)
            if scope.ids is not None and not scope.may_use(roles.id_of(update.entity)):
                raise denied(f"{which}: not in the scope of this role, says its role.config")
            if update.type not in (p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE):
                raise invalid(f"update type {update.type} is none of INSERT, MODIFY, DELETE")
            writer(update.type, getattr(update.entity, which), journal)
        except P4RuntimeError as error:
            return error
        except errors.SoftswitchError as error:
            return from_data_plane(error)
        return None

    def write_all_or_none(self, updates: Sequence[p4rt.Update], scope: roles.Scope) -> Outcomes:
        """Do the updates, or none of them if one fails."""
        journal = Journal(active=True)
        for index, update in enumerate(updates):
            refusal = self.apply(update, journal, scope)
            if refusal is not None:
                journal.roll_back()
                aborted = P4RuntimeError(code_pb2.ABORTED, f"not done, because update {index} of the batch failed")
                outcomes: Outcomes = [aborted] * len(updates)
                outcomes[index] = refusal
                return outcomes
        return [None] * len(updates)


class Target:
    """Serves one :class:`Device`.

    All methods are thread-safe, and raise :class:`P4RuntimeError` to refuse a request.
    """

    def __init__(self, device: Device, loader: Loader, timer: Timer) -> None:
        self.device = device
        self.packets = PacketStats()
        self.digests = DigestStats()
        self._loader = loader
        self._timer = timer
        self._lock = threading.RLock()  # held while entities or the pipeline are read or changed
        self.arbiter = Arbiter(device.device_id, self._lock, self._on_new_primary)
        self._running: _Running | None = None
        self._saved: _Running | None = None
        self._up = True
        device.packet_in = self._on_packet_in
        device.idle = self._on_idle
        device.digest = self._on_digest

    @property
    def lock(self) -> threading.RLock:
        """The lock that is held while entities or the pipeline are read or changed."""
        return self._lock

    # --- life ---

    def require_up(self) -> None:
        if not self._up:
            raise P4RuntimeError(code_pb2.UNAVAILABLE, f"device {self.device.device_id} is restarting")

    def install(self, config: p4rt.ForwardingPipelineConfig) -> None:
        """Start with this pipeline, without a client."""
        pipeline = self._loader.load(config)
        with self._lock:
            self._commit(self._stage(pipeline))

    def shut(self) -> None:
        """Forget all state, as a device that loses power: pipeline, entities, registers, clients, election ids."""
        with self._lock:
            self._up = False
            self._replace_running(None)
            self._drop_saved()
            self.device.unload()
            arbiter = self.arbiter
            self.arbiter = Arbiter(self.device.device_id, self._lock, self._on_new_primary)
        arbiter.close(P4RuntimeError(code_pb2.UNAVAILABLE, f"device {self.device.device_id} restarts"))

    def open(self) -> None:
        """Serve again after :meth:`shut`."""
        with self._lock:
            self._up = True

    def summary(self) -> dict[str, object]:
        """Return a summary for people: pipeline, clients and packet I/O."""
        running = self._running
        return {
            "up": self._up,
            "pipeline": None if running is None else running.pipeline.program.digest,
            "roles": self.arbiter.summary(),
            "packets": dict(vars(self.packets)),
            "digests": dict(vars(self.digests)),
        }

    # --- pipeline config ---

    def set_pipeline(self, request: p4rt.SetForwardingPipelineConfigRequest) -> None:
        """Handle the RPC SetForwardingPipelineConfig."""
        self.require_up()
        self._require_primary(request)
        if not self.arbiter.scope_of(request.role).can_push_pipeline:
            raise denied(f"role {request.role!r} may not set the pipeline, says its role.config")
        action = request.action
        kinds = p4rt.SetForwardingPipelineConfigRequest
        if action == kinds.COMMIT:
            self._commit_saved(request)
            return
        if action not in (kinds.VERIFY, kinds.VERIFY_AND_SAVE, kinds.VERIFY_AND_COMMIT, kinds.RECONCILE_AND_COMMIT):
            raise invalid(f"pipeline config action {action} does not exist; give one of VERIFY..RECONCILE_AND_COMMIT")
        if not request.HasField("config"):
            raise invalid("the request has no config")
        pipeline = self._loader.load(request.config)  # This takes seconds; writes continue meanwhile.
        with self._lock:
            self._require_primary(request)
            if action == kinds.VERIFY_AND_SAVE:
                staged = self._stage(pipeline)
                self._drop_saved()
                self._saved = staged
            elif action == kinds.VERIFY_AND_COMMIT:
                self._commit(self._stage(pipeline))
            elif action == kinds.RECONCILE_AND_COMMIT:
                self._reconcile(pipeline)

    def get_pipeline(self, response_type: int) -> p4rt.GetForwardingPipelineConfigResponse:
        """Handle the RPC GetForwardingPipelineConfig, and return the running config, not a saved one."""
        self.require_up()
        running = self._running
        return pipelines.answer(None if running is None else running.pipeline, response_type)

    def _commit_saved(self, request: p4rt.SetForwardingPipelineConfigRequest) -> None:
        if request.HasField("config"):
            raise invalid("COMMIT takes no config: it commits the saved one")
        with self._lock:
            self._require_primary(request)
            if self._saved is None:
                raise not_found("no config is saved; use VERIFY_AND_SAVE first")
            saved, self._saved = self._saved, None
            self._commit(saved)

    def _stage(self, pipeline: Pipeline) -> _Running:
        """Make a pipeline beside the running one; writes to it take effect with :meth:`_commit`."""
        try:
            staged = self.device.stage(pipeline.program, pipeline.schema.changeable)
        except errors.SoftswitchError as error:
            raise from_data_plane(error) from error
        digests = DigestAccess(staged, pipeline.schema, self._timer, self._send_to_primaries, self.digests)
        return _Running(staged, pipeline, digests)

    def _commit(self, staged: _Running) -> None:
        """Change to a staged pipeline between two packets."""
        try:
            self.device.commit(staged.device)
        except errors.SoftswitchError as error:
            raise from_data_plane(error) from error
        self._drop_saved()
        self._replace_running(staged)

    def _reconcile(self, pipeline: Pipeline) -> None:
        running = self._running
        if running is not None and pipeline.same_as(running.pipeline):
            running.pipeline = pipeline  # Its cookie may be new.
            self._drop_saved()
            return
        staged = self._stage(pipeline)
        try:
            if running is not None:
                reconcile.carry_over(running.readers, staged.writers, running.pipeline.schema)
        except BaseException:
            staged.discard()
            raise
        self._commit(staged)

    def _replace_running(self, running: _Running | None) -> None:
        old, self._running = self._running, running
        if old is not None:
            old.digests.close()

    def _drop_saved(self) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            saved.discard()

    # --- entities ---

    def write(self, request: p4rt.WriteRequest, data: bytes = b"") -> Outcomes:
        """Handle the RPC Write, and return for each update why it failed, or ``None``.

        ``data`` is the request's bytes as they arrived; with them, common updates cost a tenth.
        """
        with self._lock:
            self.require_up()
            self._require_primary(request)
            running = self._require_running()
            scope = self.arbiter.scope_of(request.role)
            mode = request.atomicity
            if mode == p4rt.WriteRequest.ROLLBACK_ON_ERROR:
                return running.write_all_or_none(request.updates, scope)
            if mode == p4rt.WriteRequest.DATAPLANE_ATOMIC:
                with running.device.frozen():
                    return running.write_all_or_none(request.updates, scope)
            if mode != p4rt.WriteRequest.CONTINUE_ON_ERROR:
                raise invalid(f"atomicity {mode} does not exist")
            return running.write_each(request.updates, scope, data if scope.ids is None else b"")

    def read(self, request: p4rt.ReadRequest) -> tuple[list[Iterator[p4rt.Entity]], Outcomes]:
        """Handle the RPC Read, and return the entities that were found, and for each query why it failed, or ``None``.

        All values are read before this returns; the iterators only build messages.
        """
        answers: list[Iterator[p4rt.Entity]] = []
        outcomes: Outcomes = []
        with self._lock:
            self.require_up()
            running = self._require_running()
            scope = self.arbiter.scope_of(request.role)
            for query in request.entities:
                try:
                    refuse_fields(query)
                    which = query.WhichOneof("entity")
                    found = _find(running.readers, which)(getattr(query, which or ""))
                    answers.append(found if scope.ids is None else _within(scope, found))
                    outcomes.append(None)
                except P4RuntimeError as error:
                    outcomes.append(error)
                except errors.SoftswitchError as error:
                    outcomes.append(from_data_plane(error))
        return answers, outcomes

    def _require_primary(self, request: p4rt.WriteRequest | p4rt.SetForwardingPipelineConfigRequest) -> None:
        if request.role_id:
            raise invalid("role_id is deprecated and not supported; set role")
        election_id = to_int(request.election_id) if request.HasField("election_id") else None
        self.arbiter.require_primary(request.role, election_id)

    def _require_running(self) -> _Running:
        """Return the pipeline that reads and writes refer to: the saved one if there is one, else the running one."""
        if self._saved is not None:
            return self._saved
        if self._running is None:
            raise P4RuntimeError(
                code_pb2.FAILED_PRECONDITION,
                f"device {self.device.device_id} has no forwarding pipeline config; use SetForwardingPipelineConfig",
            )
        return self._running

    # --- packets ---

    def packet_out(self, session: Session, packet: p4rt.PacketOut) -> None:
        """Send a client's packet into the pipeline."""
        try:
            self.require_up()
            if not self.arbiter.is_primary(session):
                raise P4RuntimeError(code_pb2.PERMISSION_DENIED, "packet-out: only the primary may send packets")
            if self.device.cpu_port is None:
                raise P4RuntimeError(
                    code_pb2.FAILED_PRECONDITION, f"packet-out: device {self.device.device_id} has no CPU port"
                )
            running = self._running
            if running is None:
                raise P4RuntimeError(code_pb2.FAILED_PRECONDITION, "packet-out: there is no forwarding pipeline config")
            frame = running.pipeline.schema.packet_out.pack(packet)
            try:
                self.device.packet_out(frame)
            except errors.SoftswitchError as error:
                raise from_data_plane(error) from error
        except P4RuntimeError:
            self.packets.packet_out_refused += 1
            raise
        self.packets.packet_out += 1

    def _on_packet_in(self, frame: bytes) -> None:
        """Handle a packet-in; called by one of the data plane's threads."""
        running = self._running
        if running is None:
            return
        primaries = self.arbiter.primaries()
        if not primaries:
            self.packets.packet_in_no_primary += 1
            return
        packet = running.pipeline.schema.packet_in.unpack(frame)
        if packet is None:
            self.packets.packet_in_malformed += 1
            return
        message = p4rt.StreamMessageResponse(packet=packet)
        for session, scope in primaries:
            if not scope.wants(packet):
                continue
            if session.send(message):
                self.packets.packet_in += 1
            else:
                self.packets.packet_in_slow_client += 1

    # --- digests ---

    def acknowledge(self, session: Session, ack: p4rt.DigestListAck) -> None:
        """Handle a client's DigestListAck."""
        self.require_up()
        if not self.arbiter.is_primary(session):
            raise denied("digest ack: only the primary may acknowledge digests")
        running = self._running
        if running is None:
            raise P4RuntimeError(code_pb2.FAILED_PRECONDITION, "digest ack: there is no forwarding pipeline config")
        running.digests.acknowledge(ack)

    def _on_digest(self, number: int, message: bytes) -> None:
        """Handle a digest; called by one of the data plane's threads."""
        running = self._running
        if running is not None:
            running.digests.receive(number, message)

    def _on_new_primary(self) -> None:
        running = self._running
        if running is not None:
            running.digests.client_changed()

    def _send_to_primaries(self, message: p4rt.StreamMessageResponse, p4_id: int) -> bool:
        """Send to the primary of every role whose scope has the object with this id, and return whether one received
        the message.
        """
        sent = [session.send(message) for session, scope in self.arbiter.primaries() if scope.may_use(p4_id)]
        return any(sent)

    def _on_idle(self, table: str, entries: list[Entry]) -> None:
        """Handle entries that were not hit for their timeouts; called by the data plane."""
        running = self._running
        if running is None or not self.arbiter.primaries():
            return
        message = p4rt.StreamMessageResponse()
        message.idle_timeout_notification.CopyFrom(running.tables.reads.idle_notification(table, entries))
        message.idle_timeout_notification.timestamp = time.time_ns()
        self._send_to_primaries(message, message.idle_timeout_notification.table_entry[0].table_id)


def _find(handlers: dict[str, Any], which: str | None) -> Any:
    if which is None:
        raise invalid("the entity is empty")
    if which in _UNSUPPORTED:
        raise unimplemented(f"{which}: {_UNSUPPORTED[which]} are not supported")
    return handlers[which]


def _within(scope: roles.Scope, found: Iterator[p4rt.Entity]) -> Iterator[p4rt.Entity]:
    """Yield the part of an answer that a role may see."""
    return (entity for entity in found if scope.may_use(roles.id_of(entity)))
