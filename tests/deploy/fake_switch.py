"""A P4Runtime server that keeps its entities in dictionaries and fails where a test wants it to."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
from google.rpc import code_pb2, status_pb2

from controlplane.targets.p4runtime.stubs import p4runtime_pb2, p4runtime_pb2_grpc


@dataclass
class Faults:
    """The faults that a test injects. fail_updates: numbers of the updates (counted from the start of the server) that
    are refused with RESOURCE_EXHAUSTED, as bmv2 does: the others of the batch are applied. fail_writes: numbers of
    Writes that fail as a whole after they were applied, as when the answer is lost. hang_seconds: how long each Write
    takes. answer: requests for the program wait for this event; `asked` is set then.
    """

    fail_updates: set[int] = field(default_factory=set)
    fail_writes: set[int] = field(default_factory=set)
    hang_seconds: float = 0.0
    forget_updates: set[int] = field(default_factory=set)
    answer: threading.Event | None = None
    asked: threading.Event = field(default_factory=threading.Event)


class FakeSwitch(p4runtime_pb2_grpc.P4RuntimeServicer):
    """One device. Starts on a free port (or `port`); `stop` ends all connections."""

    def __init__(self, device_id: int = 1, port: int = 0) -> None:
        self.device_id = device_id
        self.faults = Faults()
        self.config = p4runtime_pb2.ForwardingPipelineConfig()
        self.entities: dict[bytes, p4runtime_pb2.Entity] = {}
        self.updates = 0
        self.writes = 0
        self.pipelines = 0
        self._lock = threading.Lock()
        self.primary: tuple[int, int] | None = None
        self._streams: list[tuple[tuple[int, int], queue.Queue]] = []
        self._server = grpc.server(ThreadPoolExecutor(16), options=(("grpc.so_reuseport", 0),))
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def snapshot(self) -> dict[bytes, bytes]:
        """Return everything that is installed."""
        with self._lock:
            return {key: entity.SerializeToString(deterministic=True) for key, entity in self.entities.items()}

    def stop(self) -> None:
        for _, answers in self._streams:
            answers.put(None)
        self._server.stop(0).wait()

    # -- P4Runtime ------------------------------------------------------------------------------------------

    def StreamChannel(self, requests, context):
        answers: queue.Queue = queue.Queue()
        if not context.add_callback(lambda: answers.put(None)):
            return  # The stream was cancelled before it began: nothing would end the wait below, nor the process.
        threading.Thread(target=self._requests, args=(requests, answers, context), daemon=True).start()
        while (answer := answers.get()) is not None:
            yield answer

    def _requests(self, requests, answers, context) -> None:
        try:
            for request in requests:
                election = (request.arbitration.election_id.high, request.arbitration.election_id.low)
                with self._lock:
                    self._streams.append((election, answers))
                    self.primary = max(election, self.primary or election)
                    for other, other_answers in self._streams:
                        answer = p4runtime_pb2.StreamMessageResponse()
                        answer.arbitration.device_id = self.device_id
                        answer.arbitration.election_id.high, answer.arbitration.election_id.low = self.primary
                        if other != self.primary:
                            answer.arbitration.status.code = code_pb2.ALREADY_EXISTS
                        other_answers.put(answer)
        except grpc.RpcError:
            pass
        with self._lock:
            self._streams = [stream for stream in self._streams if stream[1] is not answers]
            elections = [election for election, _ in self._streams]
            self.primary = max(elections) if elections else None

    def SetForwardingPipelineConfig(self, request, context):
        self._check(request, context)
        with self._lock:
            self.config = request.config
            self.entities.clear()
            self.pipelines += 1
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request, context):
        if self.faults.answer is not None:
            self.faults.asked.set()
            self.faults.answer.wait()
        if request.device_id != self.device_id:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no device {request.device_id}")
        answer = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        if self.config.HasField("cookie"):
            answer.config.cookie.cookie = self.config.cookie.cookie
        return answer

    def Capabilities(self, request, context):
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version="1.4.1")

    def Write(self, request, context):
        self._check(request, context)
        time.sleep(self.faults.hang_seconds)
        errors, failed = [], False
        with self._lock:
            self.writes += 1
            lose_answer = self.writes in self.faults.fail_writes
            for update in request.updates:
                self.updates += 1
                error = self._apply(update)
                failed = failed or error.canonical_code != code_pb2.OK
                errors.append(error)
        if lose_answer:
            context.abort(grpc.StatusCode.INTERNAL, "the answer was lost")
        if failed:
            status = status_pb2.Status(code=code_pb2.UNKNOWN, message="batch failed")
            for error in errors:
                status.details.add().Pack(error)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.set_code(grpc.StatusCode.UNKNOWN)
            context.set_details("batch failed")
        return p4runtime_pb2.WriteResponse()

    def _apply(self, update: p4runtime_pb2.Update) -> p4runtime_pb2.Error:
        if self.updates in self.faults.fail_updates:
            return p4runtime_pb2.Error(canonical_code=code_pb2.RESOURCE_EXHAUSTED, message="table full")
        if self.updates in self.faults.forget_updates:
            return p4runtime_pb2.Error(canonical_code=code_pb2.OK)
        key = _key(update.entity)
        there = key in self.entities
        if update.type == p4runtime_pb2.Update.INSERT:
            if there:
                return p4runtime_pb2.Error(canonical_code=code_pb2.ALREADY_EXISTS, message="entry exists")
        elif not there:
            return p4runtime_pb2.Error(canonical_code=code_pb2.NOT_FOUND, message="no such entry")
        if update.type == p4runtime_pb2.Update.DELETE:
            del self.entities[key]
        else:
            self.entities[key] = p4runtime_pb2.Entity.FromString(update.entity.SerializeToString())
        return p4runtime_pb2.Error(canonical_code=code_pb2.OK)

    def Read(self, request, context):
        answer = p4runtime_pb2.ReadResponse()
        with self._lock:
            for wanted in request.entities:
                kind = wanted.WhichOneof("entity")
                for entity in self.entities.values():
                    if entity.WhichOneof("entity") != kind:
                        continue
                    if kind == "table_entry" and entity.table_entry.table_id != wanted.table_entry.table_id:
                        continue
                    answer.entities.add().CopyFrom(entity)
                if kind == "counter_entry":
                    for index in range(10):
                        counter = answer.entities.add().counter_entry
                        counter.counter_id = wanted.counter_entry.counter_id
                        counter.index.index, counter.data.packet_count = index, 100 + index
        yield answer

    def _check(self, request, context) -> None:
        if (request.election_id.high, request.election_id.low) != self.primary:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")


def _key(entity: p4runtime_pb2.Entity) -> bytes:
    """Return what identifies an entity: everything but its action or replicas."""
    bare = p4runtime_pb2.Entity.FromString(entity.SerializeToString())
    if bare.HasField("table_entry"):
        bare.table_entry.ClearField("action")
    else:
        bare.packet_replication_engine_entry.multicast_group_entry.ClearField("replicas")
    return bare.SerializeToString(deterministic=True)
